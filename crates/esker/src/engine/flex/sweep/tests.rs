//! When intervals are rewritten, on its own.

use super::*;
use crate::engine::Engine;
use crate::engine::flex::ROOT_BYTES;
use crate::options::{Durability, EngineKind, Options};
use crate::value::{Attributes, PutOptions};
use esker_base::clock::{Clock, ManualClock};
use std::sync::Arc;

const LEAVES: usize = 200;
const LEAF: u64 = 100_000;

/// Leaves of which each has so many appended bytes, and the commits of tables that make all of them dead.
struct Model {
    sweep: Sweep,
    appended: [u64; LEAVES],
    /// How often the sweep did not go on where it was.
    jumps: usize,
    last: usize,
}

impl Model {
    /// Commits a table of a hundredth of all; how many bytes were rewritten for each that was appended.
    fn commit(&mut self, dead: u64) -> u64 {
        let all = LEAF * LEAVES as u64;
        let (new, mut rewritten) = (LEAF / 100, 0);
        let appended = self.appended.iter().sum();
        self.sweep.begin((appended, 0), 0, all + appended, u64::MAX);
        for number in 0..LEAVES {
            let key = u16::try_from(number).unwrap().to_be_bytes();
            let sums = LeafSums {
                appended: self.appended[number],
                size: usize::try_from(LEAF + self.appended[number]).unwrap(),
                ..LeafSums::default()
            };
            if self.sweep.is_at(&key) && self.sweep.is_worth(&sums) {
                self.sweep.goes_on(Some(&u16::try_from(number + 1).unwrap().to_be_bytes().into()));
                self.sweep.learn(sums.appended, sums.appended * dead / 100, OF_REWRITTEN);
                self.sweep.spend(sums.appended);
                self.jumps += usize::from(number != (self.last + 1) % LEAVES);
                self.last = number;
                self.appended[number] = 0;
                rewritten += LEAF;
            } else {
                if self.sweep.samples {
                    self.sweep.samples = false;
                    self.sweep.learn(sums.appended, sums.appended * dead / 100, OF_SAMPLE);
                }
                self.appended[number] += new;
                self.sweep.earn(new);
            }
        }
        self.sweep.end(new * LEAVES as u64);
        rewritten * 100 / all
    }
}

fn model() -> Model {
    Model { sweep: Sweep::default(), appended: [0; LEAVES], jumps: 0, last: LEAVES - 1 }
}

#[test]
fn what_is_dead_stays_within_its_bounds_and_no_commit_costs_much_more_than_another() {
    let mut model = model();
    let mut most = 0;
    for round in 0..1000 {
        let rewritten = model.commit(100);
        most = most.max(rewritten);
        let appended: u64 = model.appended.iter().sum();
        let dead = appended * 100 / (appended + LEAF * LEAVES as u64);
        assert!(dead <= DEAD_PERCENT + 10, "{dead} % in round {round}");
        assert!(round < 100 || dead >= DEAD_PERCENT / 2, "{dead} % in round {round}: too eager");
        if round == 500 {
            model.jumps = 0;
        }
    }
    assert!(most <= 10, "a commit rewrote {most} times what it appended");
    assert!(model.jumps <= 5, "{} times out of order", model.jumps);
}

#[test]
fn what_adds_to_what_is_there_is_not_swept() {
    let mut model = model();
    // A first leaf may have to tell.
    let rewritten: u64 = (0..100).map(|_| model.commit(0)).sum();
    assert!(rewritten <= 2, "{rewritten}");
}

#[test]
fn a_store_rests_when_little_comes_for_a_while() {
    let mut rest = Rest::default();
    let at = |round: u64| Duration::from_millis(500 * round);
    rest.note(1, 1 << 20, at(1));
    assert!(rest.at.is_some() && !rest.is_now(at(4)));
    rest.note(1, (1 << 20) + LITTLE_BYTES, at(4));
    assert!(rest.is_now(at(5)));
    let mut bytes = (1 << 20) + LITTLE_BYTES;
    for moment in 0..10 {
        bytes += LITTLE_BYTES / 4;
        rest.note(1, bytes, at(5) + Duration::from_millis(moment));
    }
    assert!(!rest.is_now(at(6)), "much in a short time, little by little");
    rest.note(1, bytes, at(10));
    assert!(rest.is_now(at(10)));
    rest.at = None;
    rest.note(2, 0, at(10));
    assert!(rest.at.is_some() && !rest.is_now(at(11)), "another table");
}

/// What a table brings meanwhile, and expires first, would be forgotten.
#[test]
fn nobody_adds_up_what_has_expired_while_a_table_comes() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(1000));
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    options.testing.background = false;
    options.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    let flex = Flex::open(&options).unwrap();
    let attributes = Attributes { expires_at: Some(1005), ..Attributes::default() };
    flex.put(b"key", b"value", PutOptions { attributes, ..PutOptions::default() }).unwrap();
    flex.commit_all().unwrap();
    clock.advance(Duration::from_secs(10));
    // From here on only the first moment is known, until somebody looks at leaves.
    flex.index.forget_lapsing(b"key");
    let seen = (flex.tables().active.generation, 0, Duration::ZERO);
    let mut rest = Rest { seen, at: Some(Vec::new()), ..Rest::default() };
    let committer = flex.committer.lock();
    std::thread::scope(|scope| {
        let resting = scope.spawn(|| flex.rest(&mut rest));
        esker_trt::sleep(Duration::from_millis(300));
        let has_looked = !flex.index.has_expired(flex.clock.now());
        drop(committer);
        assert!(resting.join().unwrap().unwrap().is_some(), "it rested");
        assert!(!has_looked, "while the committer had the intervals");
        assert!(!flex.index.has_expired(flex.clock.now()), "and when it had not");
    });
}

/// A store without threads in which values over 1000 bytes are large, as of this clock.
fn opened_at(folder: &tempfile::TempDir, clock: &Arc<ManualClock>) -> Arc<Flex> {
    let mut options = Options::new(folder.path());
    options.engine = Some(EngineKind::Flex);
    options.size_bytes = 64 << 20;
    options.durability = Durability::None;
    options.testing.background = false;
    options.clock = Arc::clone(clock) as Arc<dyn Clock>;
    options.flex.large_value_size_bytes = 1000;
    Flex::open(&options).unwrap()
}

#[test]
fn what_has_expired_goes_beside_a_leaf_that_cannot_be_read() {
    const COUNT: u32 = 4000;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(1000));
    let flex = opened_at(&folder, &clock);
    let attributes = Attributes { expires_at: Some(1005), ..Attributes::default() };
    for number in 0..COUNT {
        let options = PutOptions { attributes, ..PutOptions::default() };
        flex.put(&number.to_be_bytes(), &[7; 1001], options).unwrap();
    }
    flex.commit_all().unwrap();
    assert_eq!(flex.large.count(), COUNT as usize);
    let leaf_of = |key: &[u8]| flex.index.neighbours(key, (0, 0), &|_, _| true);
    let damaged = leaf_of(&leaf_of(b"").upper.unwrap());
    assert!(leaf_of(damaged.upper.as_ref().unwrap()).upper.is_some(), "there are four");
    let is_damaged = |number: &u32| {
        let key = &number.to_be_bytes()[..];
        key >= &damaged.anchors[0][..] && key < &damaged.upper.as_ref().unwrap()[..]
    };
    let left = (0..COUNT).filter(is_damaged).count();
    let block = ROOT_BYTES + damaged.offset + damaged.size_bytes() / 2;
    flex.space.write(block, &[0x55; 64]).unwrap();
    clock.advance(Duration::from_secs(10));
    flex.compact(u64::MAX).unwrap();
    assert_eq!(flex.large.count(), left, "those of the leaf that cannot be read");
}

/// The pairs of large values may be lost with a table that was in no log.
#[test]
fn large_values_that_an_open_found_and_nobody_needs_go_while_nobody_writes() {
    const COUNT: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(1000));
    let flex = opened_at(&folder, &clock);
    for number in 0..COUNT {
        flex.put(&number.to_be_bytes(), &[7; 1001], PutOptions::default()).unwrap();
    }
    drop(flex);
    let flex = opened_at(&folder, &clock);
    assert_eq!(flex.large.count(), COUNT);
    flex.put(b"key", b"value", PutOptions::default()).unwrap();
    flex.commit_all().unwrap();
    assert!(flex.large.count() > COUNT / 2, "the table waits for few");
    clock.advance(Duration::from_secs(10));
    let seen = (flex.tables().active.generation, 0, Duration::ZERO);
    let mut rest = Rest { seen, ..Rest::default() };
    while flex.large.count() > 0 && flex.rest(&mut rest).unwrap().is_some() {}
    assert_eq!(flex.large.count(), 0);
    assert!(flex.get(b"key", &mut |_| Ok(())).unwrap().is_some());
}
