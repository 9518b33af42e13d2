//! One group of seeds: an image to begin with, and what each seed makes of it.

use crate::base::{self, Base, Known};
use crate::media::{Media, Shape, Subject, archive_of};
use crate::mutate::Mutator;
use crate::report::Report;
use crate::watch::{self, Run};
use crate::{canary, exercise, memory, space};
use esker_base::checksum::loose;
use esker_base::rng::Rng;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that begin with the same image.
pub(crate) const GROUP: u64 = 64;
/// Memory that a run may take: media take a MiB at most, an open store not much more.
const MEMORY_MAX_BYTES: u64 = 24 << 20;
/// The same of a FlexSpace: a record of its log may make a hole of 2^48 bytes, which is 65,536 extents, in leaves for 60 of which the
/// tiny geometry uses 4.
const MEMORY_MAX_BYTES_OF_SPACE: u64 = 160 << 20;
/// Bytes that count of what a checksum is over, by groups; `None`: all.
const COUNTED: [Option<usize>; 4] = [Some(0), Some(4), Some(0), None];

pub(crate) type Verdict = Result<(), String>;

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) opened: u64,
    pub(crate) reopened: u64,
    pub(crate) repaired: u64,
    pub(crate) restored: u64,
    pub(crate) formatted: u64,
}

/// Does all runs of a group.
pub(crate) fn whole_group(subject: Subject, number: u64) -> Report {
    group(subject, number, number * GROUP..(number + 1) * GROUP)
}

/// Does the runs with these seeds that belong to one group.
pub(crate) fn group(subject: Subject, group: u64, seeds: Range<u64>) -> Report {
    let shape = Shape::of(subject, group);
    let counted = COUNTED[(group % 4) as usize];
    let mut report = Report::default();
    loose::set(counted);
    let run = Run { subject, seed: seeds.start };
    let base = watched(run, &mut report, "", || base::make(&shape, group));
    match base {
        // A panic, which is noted.
        None => report.without_base += 1,
        Some(Err(error)) => {
            report.without_base += 1;
            if counted.is_none() {
                report.violation("no image to begin with, though checksums count", run, &error);
            }
        }
        Some(Ok(base)) => {
            report.backups += u64::from(base.backs_up);
            for seed in seeds {
                one(Run { subject, seed }, &shape, &base, counted.is_none(), &mut report);
            }
        }
    }
    loose::set(None);
    report
}

/// One run.
fn one(run: Run, shape: &Shape, base: &Base, strict: bool, report: &mut Report) {
    let mut rng = Rng::from_seed(run.seed ^ 0x0FF5_E7ED_1A6E_5EED);
    let mut files = base.files.clone();
    let mut mutator =
        Mutator { files: &mut files, units: shape.units(), rng: &mut rng, words: String::new() };
    mutator.mutate();
    let words = mutator.words;
    let round = shape.units()[0] as usize;
    // Media are whole blocks.
    files.iter_mut().for_each(|file| file.truncate(file.len() / round * round));
    report.runs += 1;
    report.strict_runs += u64::from(strict);
    let seed = rng.next_u64();
    let format = (rng.chance(1, 8) && run.subject != Subject::Space).then_some(Step::Format);
    for step in [Step::Open, Step::Repair].into_iter().chain(format) {
        let (known, shape) = ((base.known.clone(), strict), *shape);
        let (media, base) = (files.clone(), base.files.clone());
        let seen = simulated(run, report, &words, seed, move || {
            if step == Step::Open {
                canary::decode(&media, &base);
            }
            step.take(&Media::with(&shape, &media), &shape, known, seed)
        });
        report.see(seen, strict);
    }
    if let Some((names, files)) = &base.backup
        && rng.chance(1, 3)
    {
        let mut files = files.clone();
        let units = shape.units();
        let mut mutator =
            Mutator { files: &mut files, units, rng: &mut rng, words: "backup: ".to_owned() };
        mutator.mutate();
        let words = mutator.words;
        let (known, shape, names) = ((base.known.clone(), strict), *shape, names.clone());
        let seen = simulated(run, report, &words, seed, move || {
            let archive = archive_of(&names, &files).map_err(|error| error.to_string())?;
            exercise::try_restore(&archive, &shape, known, &mut Rng::from_seed(seed))
        });
        report.see(seen, strict);
    }
}

/// What is done with a changed image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Open,
    Repair,
    Format,
}

impl Step {
    fn take(
        self,
        media: &Media,
        shape: &Shape,
        known: (Known, bool),
        seed: u64,
    ) -> Result<Seen, String> {
        let rng = &mut Rng::from_seed(seed);
        match (self, shape.subject) {
            (Step::Open, Subject::Space) => space::try_open(media, shape, rng),
            (Step::Repair, Subject::Space) => space::try_repair(media, shape, rng),
            (Step::Format, _) => exercise::try_format(media, shape, known.1, rng),
            (Step::Open, _) => exercise::try_open(media, shape, known, rng),
            (Step::Repair, _) => exercise::try_repair(media, shape, known, rng),
        }
    }
}

/// Does `work` in a simulation. What is wrong goes to the report.
fn simulated(
    run: Run,
    report: &mut Report,
    words: &str,
    seed: u64,
    work: impl FnOnce() -> Result<Seen, String> + 'static,
) -> Seen {
    let done = watched(run, report, words, || esker_trt::sim::run(seed, work).outcome);
    match done {
        Some(Ok(Ok(seen))) => seen,
        Some(Ok(Err(wrong))) => {
            report.violation(&wrong, run, words);
            Seen::default()
        }
        Some(Err(error)) => {
            // The hook has noted a panic.
            if error.kind() != esker::ErrorKind::Panicked {
                report.violation(&format!("the simulation: {error}"), run, words);
            }
            Seen::default()
        }
        None => Seen::default(),
    }
}

/// Does `work` while its panics, its memory and its time are watched.
fn watched<T>(run: Run, report: &mut Report, words: &str, work: impl FnOnce() -> T) -> Option<T> {
    watch::begin(run, words);
    let (done, peak) = memory::counted(|| catch_unwind(AssertUnwindSafe(work)));
    if watch::end() {
        report.violation("a run that does not end", run, words);
    }
    for panic in watch::panics() {
        report.violation(
            &format!("panic at {}", panic.place),
            run,
            &format!("{}: {words}", panic.words),
        );
    }
    report.peak_bytes = report.peak_bytes.max(peak);
    let most = match run.subject {
        Subject::Space => MEMORY_MAX_BYTES_OF_SPACE,
        _ => MEMORY_MAX_BYTES,
    };
    if peak > most {
        report.violation(
            "more memory than media of a MiB justify",
            run,
            &format!("{peak} bytes: {words}"),
        );
    }
    done.ok()
}
