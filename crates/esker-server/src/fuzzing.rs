//! Fuzz targets: whole sessions over streams that stand in memory. Only in tests and in the build of a fuzzer (`fuzz/`).
//!
//! Two servers that are alike get the same stream, one in a piece, the other in pieces of any size, of whose replies the client
//! takes as little. Both have to say the same (P1 of `protocol`), however wrong the stream is, and have to hold nothing when it is over.
//!
//! Sessions run on a thread, so that requests run one after the other and the same inputs do the same. The clock stands still.

pub mod memcache;
pub mod native;

use crate::access::Access;
use crate::auth::Credentials;
use crate::clock::SteadyClock;
use crate::limits::{Limits, TASKS_MAX};
use crate::protocol::line;
use crate::server::ServerConfig;
use crate::shared::Shared;
use esker::{Durability, Options, Store};
use esker_base::clock::ManualClock;
use esker_base::rng::Rng;
use parking_lot::Mutex;
use std::io::IoSlice;
use std::sync::{Arc, LazyLock};

/// Longest value: past what is stored from the receive buffer, and not much.
const ITEM_SIZE_MAX: u64 = 18 << 10;
const NOW: u64 = 1_767_225_600;
const CREDENTIALS: &[u8] = b"ann:secret\n";

/// A store with two ways in: one asks who is there.
struct Side {
    open: Arc<Shared>,
    asking: Arc<Shared>,
}

/// The servers; one input at a time.
static SIDES: LazyLock<Mutex<[Side; 2]>> = LazyLock::new(|| Mutex::new([side(), side()]));

fn side() -> Side {
    let folder = tempfile::tempdir().expect("scratch folder");
    let clock = Arc::new(SteadyClock::new(Arc::new(ManualClock::new(NOW))));
    let mut options = Options::new(folder.path().join("data"));
    options.size_bytes = 64 << 20;
    options.durability = Durability::None;
    options.clock = clock.clone();
    options.testing.seed = Some(1);
    // What is open needs no name: the folder goes with this function.
    let store = Store::open(&options).expect("store");
    let limits = Limits { item_size_max_bytes: ITEM_SIZE_MAX, ..Limits::default() };
    let server = |auth| {
        let config = ServerConfig {
            limits: limits.clone(),
            clock: clock.clone(),
            auth,
            ..ServerConfig::default()
        };
        let mut shared = Shared::new(store.clone(), config, 1, Vec::new());
        shared.access = Access::new([7; 16]);
        // No place for a task: requests of the native protocol run where they are read, too.
        while shared.counters.shard(0).try_begin_task(TASKS_MAX) {}
        Arc::new(shared)
    };
    let known = Credentials::parse(CREDENTIALS).expect("credentials");
    Side { open: server(None), asking: server(Some(known)) }
}

/// Runs `session` on both sides, from the same beginning, and returns what each says. The second gets pieces.
fn both_say(
    control: Control,
    session: impl Fn(&Arc<Shared>, Pieces) -> Vec<u8>,
) -> (Vec<u8>, Vec<u8>) {
    let sides = SIDES.lock();
    let say = |side: &Side, pieces| {
        let shared = if control.asks { &side.asking } else { &side.open };
        // Nothing is left of the input before, a flush that was to come later neither.
        assert_eq!(shared.flush_all(0, 0), line::OK);
        shared.prefixes.turn(false);
        shared.prefixes.clear();
        let said = session(shared, pieces);
        assert_eq!(shared.counters.busy(), 0, "everything is answered");
        assert_eq!(shared.budget.free_bytes(), shared.budget.total_bytes(), "nothing is held");
        said
    };
    let [one, other] = &*sides;
    (say(one, Pieces::whole()), say(other, Pieces::of(control)))
}

/// What the first bytes of an input say.
#[derive(Clone, Copy)]
struct Control {
    /// Whether the client has to say who it is.
    asks: bool,
    marks: u8,
    seed: u8,
}

impl Control {
    const SIZE: usize = 2;

    /// Takes it off the front of `input`.
    fn take(input: &[u8]) -> Option<(Control, &[u8])> {
        let ([marks, seed], stream) = input.split_first_chunk::<{ Control::SIZE }>()?;
        Some((Control { asks: marks & 1 != 0, marks: *marks, seed: *seed }, stream))
    }
}

/// Sizes of pieces in which a stream comes and goes.
struct Pieces {
    rng: Rng,
    /// Longest one in bytes.
    most: usize,
}

impl Pieces {
    fn whole() -> Pieces {
        Pieces { rng: Rng::from_seed(0), most: usize::MAX }
    }

    fn of(control: Control) -> Pieces {
        let most = match control.seed % 4 {
            0 => 1,
            1 => 7,
            2 => 100,
            _ => 5000,
        };
        Pieces { rng: Rng::from_seed(control.seed.into()), most }
    }

    /// Size of the next one, at most `most` and more than zero, if that is.
    fn next(&mut self, most: usize) -> usize {
        if self.most == usize::MAX {
            return most;
        }
        (1 + self.rng.index(self.most)).min(most)
    }

    /// Takes the next piece of `input` off its front.
    fn take(&mut self, input: &mut &[u8], into: &mut [u8]) -> usize {
        let count = self.next(into.len().min(input.len()));
        let (piece, rest) = input.split_at(count);
        into[..count].copy_from_slice(piece);
        *input = rest;
        count
    }

    /// Puts the next piece of `slices` behind `told`.
    fn put(&mut self, slices: &[IoSlice<'_>], told: &mut Vec<u8>) -> usize {
        let count = self.next(slices.iter().map(|slice| slice.len()).sum());
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied());
        told.extend(bytes.take(count));
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_testkit::fuzz::{Target, smoke};

    #[test]
    fn targets_take_seeds_what_is_changed_of_them_and_noise() {
        const TARGETS: [Target; 2] = [
            ("memcache", memcache::run, memcache::seeds),
            ("native_session", native::run, native::seeds),
        ];
        smoke(&TARGETS, 1, 500);
        assert!(TARGETS.iter().all(|(_, _, seeds)| seeds().len() > 3), "seeds of each kind");
    }
}
