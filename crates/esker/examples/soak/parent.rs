//! The process that starts the one under test, hears what it did, kills it, and judges what the next one finds.

use crate::Arguments;
use crate::model::{self, Span};
use crate::report::Message;
use esker::Durability;
use esker_base::clock::{Clock, SystemClock};
use esker_base::rng::Rng;
use std::fmt::Write as _;
use std::io::{BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const SIGKILL: i32 = 9;
/// A round that does not end so long after it was told to hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is known of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    issued: u32,
    acknowledged: u32,
    /// Acknowledged when the last sync that returned began, and when one began that may not have returned.
    durable: u32,
    durable_soon: u32,
}

/// How a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Closed,
}

/// What came of waiting for the end of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Stopped {
    resident_bytes: u64,
    files: usize,
    /// Whether it ran until this process killed it.
    killed: bool,
    /// Whether it was to close, and did not.
    hung: bool,
}

/// Figures of a round.
#[derive(Debug, Default)]
struct Round {
    open_ms: Option<u32>,
    is_read: bool,
    writes: u64,
    late_us: u32,
    closed: bool,
    resident_bytes: u64,
    files: usize,
}

/// Rounds until the time is over.
///
/// # Errors
/// The first thing that was wrong; the store stays as it is if it is in a folder that was named.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let words = |error: std::io::Error| error.to_string();
    let scratch = tempfile::tempdir().map_err(words)?;
    let mut arguments = arguments.clone();
    arguments.data.get_or_insert_with(|| scratch.path().to_owned());
    let folder = arguments.folder();
    if folder.join("store").exists() {
        return Err(format!("{} has a store; what it has is not known", folder.display()));
    }
    let clock = SystemClock;
    let from = clock.monotonic();
    let minutes = || (clock.monotonic() - from).as_secs_f64() / 60.0;
    let mut rng = Rng::from_seed(arguments.seed);
    let mut known = vec![Known::default(); arguments.keys() as usize];
    let mut round = 0;
    let wrong = |round: u64, words: String| format!("{}, round {round}: {words}", arguments.engine);
    // The last round is a closed one.
    let mut end = End::Killed;
    // One more opens what it left.
    while round + 1 < model::ROUNDS_MAX && (minutes() < arguments.minutes || end == End::Killed) {
        end = if round % 3 == 2 { End::Closed } else { End::Killed };
        // Some are killed while they open.
        let most = if rng.chance(1, 8) && end == End::Killed { 0.1 } else { arguments.round };
        let seconds = most * rng.below(1000) as f64 / 1000.0;
        let seen = one(&arguments, round, (end, Duration::from_secs_f64(seconds)), &mut known)
            .map_err(|words| wrong(round, words))?;
        tell(&arguments, round, (end, seconds), &seen)?;
        round += 1;
    }
    // It reads all of what the last close left, and closes.
    let seen = one(&arguments, round, (End::Closed, Duration::ZERO), &mut known)
        .map_err(|words| wrong(round, words))?;
    tell(&arguments, round, (End::Closed, 0.0), &seen)?;
    round += 1;
    let next = arguments.seed + 1;
    println!("{}: {round} rounds passed, go on with --seed {next}", arguments.engine);
    Ok(())
}

fn one(
    arguments: &Arguments,
    round: u64,
    (end, time): (End, Duration),
    known: &mut [Known],
) -> Result<Round, String> {
    let words = |error: std::io::Error| error.to_string();
    let mut child = Command::new(std::env::current_exe().map_err(words)?)
        .args(arguments.of_child(round))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(words)?;
    let output = child.stdout.take().ok_or("no output")?;
    let input = child.stdin.take().ok_or("no input")?;
    let (ended, ends) = channel();
    let mut seen = Round::default();
    let stopped = std::thread::scope(|scope| {
        let child = &mut child;
        let killer = scope.spawn(move || stop(child, input, (end, time), ends));
        let mut output = BufReader::new(output);
        let heard = loop {
            match Message::hear(&mut output) {
                Ok(Some(message)) => {
                    if let Err(words) = note(message, &mut seen, known, arguments.durability) {
                        break Err(words);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        drop(ended);
        let stopped = killer.join().unwrap_or_default();
        heard.map(|()| stopped)
    });
    // A process that failed a judgement here still runs.
    let _ = child.kill();
    let status = child.wait().map_err(words)?;
    let Stopped { resident_bytes, files, killed, hung } = stopped?;
    (seen.resident_bytes, seen.files) = (resident_bytes, files);
    if hung {
        return Err("it does not end".to_owned());
    }
    match end {
        End::Closed if !status.success() || !seen.is_read || !seen.closed => {
            Err(format!("it was to close and did not: {status}"))
        }
        // Somebody else, or itself: it crashed, or there is too little memory.
        End::Killed if !killed || status.signal() != Some(SIGKILL) => {
            Err(format!("it ended before: {status}"))
        }
        _ => Ok(seen),
    }
}

/// Ends the process when it is time, unless it ended itself; its memory and files then.
fn stop(
    child: &mut Child,
    input: ChildStdin,
    (end, time): (End, Duration),
    ends: Receiver<()>,
) -> Stopped {
    let is_over = |time| ends.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    if is_over(time) {
        return Stopped::default();
    }
    let of = Path::new("/proc").join(child.id().to_string());
    let files = std::fs::read_dir(of.join("fd")).map_or(0, Iterator::count);
    let status = std::fs::read_to_string(of.join("status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
    let resident_bytes = resident.unwrap_or(0) << 10;
    let hung = end == End::Closed && {
        drop(input);
        !is_over(PATIENCE)
    };
    let killed = end == End::Killed || hung;
    if killed {
        child.kill().expect("it can be killed");
    }
    Stopped { resident_bytes, files, killed, hung }
}

/// Notes what was told, and judges what was found.
fn note(
    message: Message,
    seen: &mut Round,
    known: &mut [Known],
    durability: Durability,
) -> Result<(), String> {
    let at = |number: u32| number as usize;
    match message {
        Message::Open(time) => seen.open_ms = Some(time),
        Message::Found(number, generation) => {
            let key = &mut known[at(number)];
            let found = (generation > 0).then_some(generation);
            Span(key.durable, key.issued).judge(number, found)?;
            // One write of a key is under way at a time.
            let last = Span(key.acknowledged, key.issued);
            if durability == Durability::Sync && !last.is_end(found) {
                return Err(format!("key {number} has {found:?} and no end of {last:?}"));
            }
            // What a process read stays: the power is on.
            let (issued, acknowledged) = (generation, generation);
            *key = Known { issued, acknowledged, durable: generation, durable_soon: generation };
        }
        Message::Read => seen.is_read = true,
        Message::Issued(number, generation) => known[at(number)].issued = generation,
        Message::Acknowledged(number, generation) => known[at(number)].acknowledged = generation,
        Message::SyncBegins => {
            known.iter_mut().for_each(|key| key.durable_soon = key.acknowledged);
        }
        Message::Synced => known.iter_mut().for_each(|key| key.durable = key.durable_soon),
        Message::Figures(writes, late) => {
            seen.writes += u64::from(writes);
            seen.late_us = seen.late_us.max(late);
        }
        Message::Closed(items) => {
            seen.closed = true;
            known.iter_mut().for_each(|key| key.durable = key.acknowledged);
            let right = known.iter().filter(|key| key.acknowledged % 2 == 1).count();
            if items as usize != right {
                return Err(format!("{items} items at the end, and {right} were told"));
            }
        }
    }
    Ok(())
}

fn tell(
    arguments: &Arguments,
    round: u64,
    (end, seconds): (End, f64),
    seen: &Round,
) -> Result<(), String> {
    let Round { open_ms, writes, late_us, resident_bytes, files, .. } = seen;
    let engine = arguments.engine;
    let mut line = format!("{engine}, round {round}, {end:?} after {seconds:.1} s: ");
    match (open_ms, seen.is_read) {
        (None, _) => line += "not open",
        (Some(open), false) => write!(line, "open in {open} ms, not read").unwrap(),
        (Some(open), true) => {
            let keys = arguments.keys();
            let late = f64::from(*late_us) / 1000.0;
            let memory = resident_bytes >> 20;
            write!(line, "open in {open} ms, {keys} keys right, {writes} writes, ").unwrap();
            write!(line, "p99.9 {late:.1} ms, {memory} MiB, {files} files").unwrap();
        }
    }
    println!("{line}");
    let Some(ledger) = &arguments.ledger else { return Ok(()) };
    let seed = arguments.seed;
    let open = open_ms.map_or_else(|| "null".to_owned(), |open| open.to_string());
    let line = format!(
        "{{\"engine\":\"{engine}\",\"seed\":{seed},\"round\":{round},\"end\":\"{end:?}\",\
         \"seconds\":{seconds:.1},\"open_ms\":{open},\"read\":{},\"writes\":{writes},\
         \"p999_us\":{late_us},\"resident_bytes\":{resident_bytes},\"files\":{files}}}\n",
        seen.is_read
    );
    let append = || {
        #[expect(clippy::disallowed_methods, reason = "a report, not a medium")]
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(ledger)?;
        file.write_all(line.as_bytes())
    };
    append().map_err(|error| format!("ledger: {error}"))
}
