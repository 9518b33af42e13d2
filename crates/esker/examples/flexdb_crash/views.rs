//! What a store shows of another moment, or to somebody else: snapshots, backups, and the room that it takes.

use crate::content::{self, Content, Held, Items};
use crate::scenarios::words;
use crate::workload::{DEVICES, devices, files, options};
use esker::options::Progress;
use esker::{Direction, Error, ErrorKind, Result, Snapshot, Store, restore_flex_on};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use esker_media::sim::{Initial, SimArchive};
use std::sync::{Arc, OnceLock};

type Verdict = std::result::Result<(), String>;

/// Most snapshots at a time.
const SNAPSHOTS_MAX: usize = 3;

/// Snapshots that are open, and what each was taken of.
#[derive(Default)]
pub(crate) struct Snapshots(Vec<(Snapshot, Content)>);

/// Everything that a snapshot shows.
pub(crate) fn read(snapshot: &Snapshot, direction: Direction) -> Result<Items> {
    let items = snapshot.scan(.., direction, usize::MAX)?;
    Ok(items.into_iter().map(|(key, value)| (key, Held::of(&value))).collect())
}

impl Snapshots {
    /// Another one; of too many, the oldest goes.
    pub(crate) fn add(&mut self, store: &Store, model: &Content) -> Verdict {
        if self.0.len() == SNAPSHOTS_MAX {
            self.0.remove(0);
        }
        self.0.push((store.snapshot().map_err(words)?, model.clone()));
        Ok(())
    }

    /// One of them shows what the store held then, without what has expired since.
    pub(crate) fn look(&mut self, rng: &mut Rng, time: u64) -> Verdict {
        if self.0.is_empty() {
            return Ok(());
        }
        let index = rng.index(self.0.len());
        self.0.get(index).map_or(Ok(()), |view| look_at(view, rng, time))?;
        if rng.chance(1, 4) {
            self.0.remove(index);
        }
        Ok(())
    }

    /// All of them go, each looked at once more.
    pub(crate) fn end(&mut self, time: u64) -> Verdict {
        self.0.drain(..).try_for_each(|view| look_at(&view, &mut Rng::from_seed(time), time))
    }
}

fn look_at((snapshot, taken): &(Snapshot, Content), rng: &mut Rng, time: u64) -> Verdict {
    let taken = Content::shown(taken.items.clone(), time);
    let direction = if rng.chance(1, 2) { Direction::Forward } else { Direction::Reverse };
    let found = Content::shown(read(snapshot, direction).map_err(words)?, time);
    if found.items != taken.seen() {
        let difference = taken.difference(&found, time);
        return Err(format!("a snapshot shows something else: {difference}"));
    }
    for key in taken.items.keys().filter(|_| rng.chance(1, 8)) {
        let found = snapshot.get(key).map_err(words)?.as_ref().map(Held::of);
        if found.as_ref() != taken.get(key) {
            return Err(format!("a get of a snapshot found {found:?}"));
        }
    }
    Ok(())
}

/// What a backup of the store holds that is made now.
pub(crate) fn backed_up(store: &Store, time: u64) -> Result<Items> {
    let archive = SimArchive::new();
    store.backup_to(&archive, &Progress::default())?;
    let devices = devices(&vec![Initial::Zeros; DEVICES], 3, false);
    let mut options = options(1);
    options.clock = Arc::new(ManualClock::new(time));
    options.format = true;
    restore_flex_on(&archive, files(&devices), &options)?;
    (options.format, options.create) = (false, false);
    let restored = Store::open_flex_on(files(&devices), &options)?;
    let items = content::read(&restored, 0)?;
    restored.forget();
    Ok(items)
}

/// A backup has what the store shows.
pub(crate) fn backup(store: &Store, model: &Content) -> Verdict {
    let found = Content::shown(backed_up(store, model.time).map_err(words)?, model.time);
    if found.items == model.seen() {
        return Ok(());
    }
    Err(format!("a backup has something else: {}", model.difference(&found, model.time)))
}

/// Bytes of the space, and segments in use.
fn taken(store: &Store) -> [u64; 2] {
    let stats = store.stats();
    [stats.live_bytes, stats.segments - stats.free_segments]
}

/// Empties a store, of which nothing is used any more: it takes no more room than one that never held anything.
pub(crate) fn empty(store: &Store) -> Result<()> {
    static FRESH: OnceLock<[u64; 2]> = OnceLock::new();
    let fresh = FRESH.get_or_init(|| {
        let devices = devices(&vec![Initial::Zeros; DEVICES], 3, false);
        let mut options = options(1);
        options.format = true;
        let store = Store::open_flex_on(files(&devices), &options).unwrap();
        emptied(&store).unwrap();
        let taken = taken(&store);
        store.forget();
        taken
    });
    emptied(store)?;
    let taken = taken(store);
    if taken[0] <= fresh[0] && taken[1] <= fresh[1] {
        return Ok(());
    }
    let words = format!("{taken:?} bytes and segments of an emptied store, {fresh:?} of a new one");
    Err(Error::new(ErrorKind::Corrupted, "empty store").context(words))
}

fn emptied(store: &Store) -> Result<()> {
    store.put(b"key", b"value")?;
    store.clear()?;
    store.clean(usize::MAX)?;
    store.trim()?;
    Ok(())
}
