//! Two tasks that use the same keys of one store at the same time, in a simulation.
//!
//! What they write has an order: that of the versions which the writes get, as the log is in that order. So writes that returned before
//! another one began have lower versions, each condition held right before its write, and a cut leaves a beginning of that order. So does
//! a snapshot show one, with everything that had returned. A read of one key finds what that key had at some moment of the call: a write
//! of another key may return while one that is before it in the log is not seen yet.

use crate::content::{self, Content, Held, Items};
use crate::operation::{Changes, apply, batch_of, changes, held, number, refusal};
use crate::scenarios::words;
use crate::views;
use crate::workload::Running;
use esker::{Condition, Direction, ErrorKind, Outcome, PutOptions, Store};
use esker_base::rng::Rng;
use esker_media::sim::SimDevices;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

type Result<T> = std::result::Result<T, String>;
/// What is so at a moment.
type Fact = Box<dyn Fn(&Content) -> bool>;

/// Operations of each task.
const OPERATIONS: u64 = 6;

/// A call that returned.
struct Done {
    /// Its name, and its key if what is so is about one key: calls of other keys say nothing of that one's.
    what: &'static str,
    key: Option<Vec<u8>>,
    /// Begin and end among those of all calls.
    moments: Range<u64>,
    /// Begin and end among the calls of the devices.
    positions: Range<u64>,
    /// What it changed, and the version of the last change.
    wrote: Option<(Changes, u64)>,
    /// Whether all that returned before it is durable.
    synced: bool,
    /// What was so right before the change; or at some moment of a call that changed nothing.
    fact: Fact,
}

/// What the tasks share.
struct Shared {
    store: Store,
    devices: Arc<SimDevices>,
    time: u64,
    next_moment: Cell<u64>,
    done: RefCell<Vec<Done>>,
}

/// Lets two tasks work beside each other.
pub(crate) fn run(run: &mut Running) -> Result<()> {
    let (store, devices, time) = (run.store.clone(), Arc::clone(&run.devices), run.model.time);
    let seed = run.rng.next_u64();
    let report = esker_trt::sim::run(seed, move || -> Result<Vec<Done>> {
        let (next_moment, done) = (Cell::new(0), RefCell::default());
        let shared = Rc::new(Shared { store, devices, time, next_moment, done });
        let tasks: Vec<_> = (0..2)
            .map(|task| {
                let (shared, mut rng) = (Rc::clone(&shared), Rng::from_seed(seed ^ task));
                esker_trt::spawn(move || (0..OPERATIONS).try_for_each(|_| shared.any(&mut rng)))
            })
            .collect();
        for task in tasks {
            task.join().map_err(words)??;
        }
        Ok(shared.done.take())
    });
    let done = report.outcome.map_err(words)?.map_err(|words| format!("beside: {words}"))?;
    order(run, done).map_err(|words| format!("beside, by seed {seed}: {words}"))
}

/// What a call is made of.
struct Call {
    what: &'static str,
    key: Option<Vec<u8>>,
    moment: u64,
    position: u64,
}

impl Shared {
    fn moment(&self) -> u64 {
        self.next_moment.replace(self.next_moment.get() + 1)
    }

    fn begin(&self, what: &'static str, key: Option<&[u8]>) -> Call {
        let key = key.map(<[u8]>::to_vec);
        Call { what, key, moment: self.moment(), position: self.devices.position() }
    }

    fn end(
        &self,
        call: Call,
        wrote: Option<(Changes, u64)>,
        fact: impl Fn(&Content) -> bool + 'static,
    ) {
        let Call { what, key, moment, position } = call;
        let moments = moment..self.moment();
        let positions = position..self.devices.position();
        let (synced, fact) = (what == "sync", Box::new(fact));
        self.done.borrow_mut().push(Done { what, key, moments, positions, wrote, synced, fact });
    }

    fn any(&self, rng: &mut Rng) -> Result<()> {
        // Few keys, so that they meet.
        let key = format!("key/{:02}", rng.below(6) * 7).into_bytes();
        let always = |_: &Content| true;
        match rng.below(16) {
            0..6 => self.put(key, rng)?,
            6 => {
                let next = held(rng, self.time);
                let call = self.begin("modify", Some(&key));
                let mut last = None;
                let modified = self.store.modify(&key, |old| {
                    last = old.map(Held::of);
                    Some((next.value.clone(), next.attributes))
                });
                let version = modified.map_err(words)?.ok_or("a change that was none")?;
                let wrote = Some((vec![(key.clone(), Some(next))], version.0));
                self.end(call, wrote, move |before| before.get(&key) == last.as_ref());
            }
            7 | 8 => {
                let all = match rng.below(3) {
                    0 => changes(rng, self.time),
                    // A delete says nothing of its version.
                    _ => vec![(key, None)],
                };
                let call = self.begin("batch", None);
                let last = self.store.write(&batch_of(&all)).map_err(words)?;
                self.end(call, Some((all, last.0)), always);
            }
            9 => {
                let call = self.begin("get", Some(&key));
                let found = self.store.get(&key).map_err(words)?.as_ref().map(Held::of);
                self.end(call, None, move |content| content.get(&key) == found.as_ref());
            }
            10 => {
                let call = self.begin("snapshot", None);
                let snapshot = self.store.snapshot().map_err(words)?;
                let (moments, positions) = (self.moment(), self.devices.position());
                let taken = |found: Items| move |content: &Content| content.seen() == found;
                let found = views::read(&snapshot, Direction::Forward).map_err(words)?;
                esker_trt::yield_now();
                if views::read(&snapshot, Direction::Reverse).map_err(words)? != found {
                    return Err("a snapshot shows one thing and then another".to_owned());
                }
                let Call { what, key, moment, position } = call;
                let (moments, positions) = (moment..moments, position..positions);
                let (synced, fact) = (false, Box::new(taken(found)));
                let done = Done { what, key, moments, positions, wrote: None, synced, fact };
                self.done.borrow_mut().push(done);
            }
            11 if rng.chance(1, 4) => {
                let call = self.begin("backup", None);
                match views::backed_up(&self.store, self.time) {
                    Ok(found) => self.end(call, None, move |content| content.seen() == found),
                    // The other task makes one.
                    Err(error) if error.kind() == ErrorKind::Locked => {}
                    Err(error) => return Err(words(error)),
                }
            }
            12 => {
                let call = self.begin("sync", None);
                self.store.sync().map_err(words)?;
                self.end(call, None, always);
            }
            13 => {
                let _ = self.store.clean(1 + rng.index(3)).map_err(words)?;
                let _ = self.store.trim().map_err(words)?;
            }
            14 if rng.chance(1, 2) => {
                let report = self.store.check().map_err(words)?;
                report.problems.first().map_or(Ok(()), |problem| Err(problem.clone()))?;
            }
            15 => self.store.write_out().map_err(words)?,
            _ => drop(content::read(&self.store, 1).map_err(words)?),
        }
        Ok(())
    }

    fn put(&self, key: Vec<u8>, rng: &mut Rng) -> Result<()> {
        let condition = match rng.below(6) {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 | 3 => match self.store.get(&key).map_err(words)? {
                Some(found) => Condition::VersionIs(found.version()),
                None => Condition::Absent,
            },
            _ => Condition::Always,
        };
        let new = held(rng, self.time);
        let options = PutOptions { attributes: new.attributes, condition };
        let call = self.begin("put", Some(&key));
        let outcome = self.store.put_with(&key, &new.value, options).map_err(words)?;
        let (wrote, refused) = match outcome {
            Outcome::Stored(version) => (Some((vec![(key.clone(), Some(new))], version.0)), None),
            refused => (None, Some(refused)),
        };
        self.end(call, wrote, move |content| refusal(condition, content.get(&key)) == refused);
        Ok(())
    }
}

/// Judges what was done, and puts it into the timeline.
fn order(run: &mut Running, done: Vec<Done>) -> Result<()> {
    let (mut writes, others): (Vec<Done>, Vec<_>) =
        done.into_iter().partition(|done| done.wrote.is_some());
    let version = |done: &Done| done.wrote.as_ref().map(|(_, last)| *last);
    writes.sort_by_key(version);
    for write in &mut writes {
        if let Some((changes, last)) = &mut write.wrote {
            number(changes, *last);
        }
    }
    // What the store held before each write, and in the end.
    let mut contents = vec![run.model.clone()];
    for (index, write) in writes.iter().enumerate() {
        let before = |other: &Done| other.moments.end < write.moments.start;
        if writes[index..].iter().any(before) {
            return Err(format!("a {} has a version below that of one before it", write.what));
        }
        if !(write.fact)(&contents[index]) {
            return Err(format!("a {} was done that what was there does not allow", write.what));
        }
        let mut next = contents[index].clone();
        apply(&mut next, write.wrote.as_ref().map_or(&[], |(changes, _)| changes));
        contents.push(next);
    }
    // How many of the writes there are up to the last one that returned before a moment, of this key or of any.
    let ended = |moment: u64, key: &Option<Vec<u8>>| {
        let is_before = |write: &Done| {
            let changes = write.wrote.iter().flat_map(|(changes, _)| changes);
            write.moments.end < moment
                && (key.is_none()
                    || changes.map(|change| &change.0).any(|one| key.as_ref() == Some(one)))
        };
        writes.iter().rposition(is_before).map_or(0, |index| index + 1)
    };
    for other in &others {
        let begun = writes.iter().rposition(|write| write.moments.start < other.moments.end);
        let from = ended(other.moments.start, &other.key);
        let to = begun.map_or(0, |index| index + 1);
        if !(from..=to.max(from)).any(|index| (other.fact)(&contents[index])) {
            return Err(format!("a {} says what was never so while it was made", other.what));
        }
    }
    let first = run.timeline.begin(run.devices.position(), run.model.clone());
    let mut from = 0;
    for (write, content) in writes.iter().zip(&contents[1..]) {
        // A crash leaves what begins before: of these writes, all that are before this one in the log.
        from = write.positions.start.max(from);
        let number = run.timeline.begin(from, content.clone());
        if run.sync {
            run.timeline.synced_to(write.positions.end, number);
        }
        for (key, held) in write.wrote.iter().flat_map(|(changes, _)| changes) {
            if let Some(held) = held {
                run.told.add(write.positions.end, key, held.version)?;
            }
        }
    }
    for sync in others.iter().filter(|other| other.synced) {
        run.timeline.synced_to(sync.positions.end, first + ended(sync.moments.start, &None));
    }
    run.model = contents.pop().unwrap_or_default();
    Ok(())
}
