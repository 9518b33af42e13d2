//! Images to begin with: what a workload of one task leaves of a store, closed or not, and a backup of it.

use crate::media::{Files, Media, NOW, Shape, Subject, files_of};
use esker::options::Progress;
use esker::{Attributes, Batch, PutOptions, Store};
use esker_base::rng::Rng;
use esker_media::sim::SimArchive;
use std::collections::{BTreeMap, BTreeSet};

/// What each key held at some time.
pub(crate) type Known = BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>;

/// Most operations of a workload, and fewest.
const OPERATIONS: [u64; 2] = [160, 30];
/// Keys of a workload.
const KEYS: u64 = 40;

/// What a workload left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Base {
    pub(crate) files: Vec<Vec<u8>>,
    pub(crate) backup: Option<Files>,
    /// Whether there was to be one.
    pub(crate) backs_up: bool,
    pub(crate) known: Known,
}

/// Makes one.
///
/// # Errors
/// Checksums that do not count keep the store from being made or opened again; where they count, nothing may.
pub(crate) fn make(shape: &Shape, seed: u64) -> Result<Base, String> {
    let shape = *shape;
    let made = esker_trt::sim::run(seed, move || match shape.subject {
        Subject::Space => of_space(&shape, seed),
        _ => of_store(&shape, seed),
    });
    made.outcome.map_err(words)?
}

fn words(error: esker::Error) -> String {
    error.to_string()
}

/// A key: short ones, some that are long, all with much in common.
pub(crate) fn key(rng: &mut Rng, count: u64) -> Vec<u8> {
    let number = rng.below(count);
    let mut key = format!("key/{number:03}").into_bytes();
    if number % 9 == 7 {
        key.resize(40 + 13 * number as usize % 260, b'k');
    }
    key
}

/// A value; `segment` is more than any record takes that is not a large one.
pub(crate) fn value(rng: &mut Rng, segment: u64) -> Vec<u8> {
    let most = match rng.below(20) {
        0..8 => 20,
        8..16 => 300,
        16..19 => 1500,
        _ => 2 * segment,
    };
    let mut value = vec![0; rng.below(most + 1) as usize];
    rng.fill(&mut value);
    if rng.chance(1, 3) {
        value.fill(rng.below(256) as u8);
    }
    value
}

fn of_store(shape: &Shape, seed: u64) -> Result<Base, String> {
    let mut rng = Rng::from_seed(seed);
    let media = Media::blank(shape);
    let mut options = shape.options(rng.next_u64(), 0);
    options.format = true;
    let mut store = media.open(&options).map_err(words)?;
    let mut known = Known::new();
    let archive = SimArchive::new();
    let count = OPERATIONS[1] + rng.below(OPERATIONS[0] - OPERATIONS[1]);
    let backed_up = rng.below(2 * count);
    for number in 0..count {
        if number == backed_up {
            let _ = store.backup_to(&archive, &Progress::default());
        }
        if rng.chance(1, 40) {
            store = reopen(store, &media, shape, &mut rng)?;
        }
        operate(&store, shape, &mut rng, &mut known);
    }
    match rng.below(4) {
        0 | 1 => {
            let _ = store.close();
        }
        2 => {
            let _ = store.write_out();
            store.forget();
        }
        _ => store.forget(),
    }
    let backup = files_of(&archive).ok().filter(|(names, _)| !names.is_empty());
    Ok(Base { files: media.contents(), backup, backs_up: backed_up < count, known })
}

fn reopen(store: Store, media: &Media, shape: &Shape, rng: &mut Rng) -> Result<Store, String> {
    if rng.chance(1, 2) {
        let _ = store.close();
        drop(store);
    } else {
        store.forget();
    }
    media.open(&shape.options(rng.next_u64(), 0)).map_err(words)
}

/// Does something. What comes of it is not looked at: a store may be full, or have checksums that do not count.
fn operate(store: &Store, shape: &Shape, rng: &mut Rng, known: &mut Known) {
    let mut put = |rng: &mut Rng| {
        let (key, value) = (key(rng, KEYS), value(rng, shape.segment()));
        known.entry(key.clone()).or_default().insert(value.clone());
        (key, value)
    };
    let attributes = |rng: &mut Rng| Attributes {
        flags: rng.below(3) as u32,
        expires_at: rng.chance(1, 3).then(|| NOW + 1 + rng.below(500)),
        state: rng.below(2) as u8,
    };
    match rng.below(40) {
        0..24 => {
            let (key, value) = put(rng);
            let attributes = if rng.chance(1, 4) { attributes(rng) } else { Attributes::default() };
            let options = PutOptions { attributes, ..PutOptions::default() };
            let _ = store.put_with(&key, &value, options);
        }
        24..30 => drop(store.delete(&key(rng, KEYS))),
        30..33 => {
            let mut batch = Batch::new();
            for _ in 0..1 + rng.below(6) {
                let (key, value) = put(rng);
                match rng.below(4) {
                    0 => batch.delete(&key),
                    1 => batch.put_with(&key, &value, attributes(rng)),
                    _ => batch.put(&key, &value),
                };
            }
            let _ = store.write(&batch);
        }
        33 | 34 => drop(store.clean(2)),
        35 => drop(store.checkpoint()),
        36 => drop(store.sync()),
        37 => {
            let (one, other) = (key(rng, KEYS), key(rng, KEYS));
            if rng.chance(1, 3) {
                let _ = store.delete_range(&one, Some(&other));
            }
        }
        38 => drop(store.get(&key(rng, KEYS))),
        _ => {
            if rng.chance(1, 6) {
                let _ = store.clear();
            }
            let _ = store.trim();
        }
    }
}

fn of_space(shape: &Shape, seed: u64) -> Result<Base, String> {
    let mut rng = Rng::from_seed(seed);
    let media = Media::blank(shape);
    let mut options = shape.space_options(rng.next_u64());
    options.format = true;
    let mut space = media.open_space(&options).map_err(words)?;
    for _ in 0..OPERATIONS[1] + rng.below(OPERATIONS[0] - OPERATIONS[1]) {
        if rng.chance(1, 40) {
            if rng.chance(1, 2) {
                let _ = space.close();
            }
            space = media.open_space(&shape.space_options(rng.next_u64())).map_err(words)?;
        }
        crate::space::operate(&space, &mut rng);
    }
    if rng.chance(1, 2) {
        let _ = space.close();
    }
    Ok(Base { files: media.contents(), ..Base::default() })
}
