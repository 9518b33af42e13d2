//! Clients by the clock, on a system that is slow when it is to be.

use super::*;
use crate::workload::catalogue;

/// Has every key; each answer takes `each`, and that to read number `stalls_at` takes `stall` more.
struct Slow {
    each: Duration,
    stalls_at: u64,
    stall: Duration,
    reads: u64,
}

impl Session for Slow {
    fn read(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        let stall = if self.reads == self.stalls_at { self.stall } else { Duration::ZERO };
        self.reads += 1;
        let wait = self.each + stall;
        if !wait.is_zero() {
            esker_trt::sleep(wait);
        }
        Ok(true)
    }

    fn write(&mut self, _: &[u8], _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn delete(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Ok(0)
    }
}

const NEVER: u64 = u64::MAX;

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What the only client does that reads at random, measured from 100 ms on for `length`.
fn run_on(system: Slow, watch: Watch, rate: Option<f64>, length: Duration) -> Tally {
    let workload = catalogue::named("readrandom").unwrap();
    let begin = watch.now() + millis(10);
    let measure_from = begin + millis(100);
    let phase = Phase {
        workload,
        space: Arc::new(KeySpace::new(100)),
        filler: Arc::new(Filler::new(1, 0)),
        trace: None,
        trace_timing: false,
        records: 100,
        keys: 100,
        ends: Ends::default(),
        seed: 1,
        clients: 1,
        checks_values: false,
        rate,
        operations: None,
        watch,
        begin,
        measure_from,
        end: Some(measure_from + length),
        interval: millis(50),
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
        finished: AtomicU64::new(0),
    };
    let tally = run(&phase, || Ok(Box::new(system)), 0).unwrap();
    assert_eq!(phase.finished.load(Ordering::Relaxed), 1);
    tally
}

fn latencies(tally: &Tally) -> &Histogram<u64> {
    &tally.latencies[&Operation::Read]
}

/// The clients' watch and the system's clock drift apart: a client that waited by one and measured by the other
/// had answers before it asked, or waits that nobody had.
#[test]
fn a_client_waits_by_the_watch_that_it_measures_with() {
    for is_ahead in [false, true] {
        let median = || {
            let system =
                Slow { each: Duration::ZERO, stalls_at: NEVER, stall: Duration::ZERO, reads: 0 };
            let watch = Watch::apart(millis(500), is_ahead);
            let tally = run_on(system, watch, Some(1000.0), millis(200));
            assert!(tally.ops.abs_diff(200) <= 1, "{}", tally.ops);
            let found = latencies(&tally);
            assert!(found.min() > 1, "an answer came before it was due");
            found.value_at_quantile(0.5)
        };
        // A busy machine may stand still itself.
        assert!((0..5).any(|_| median() < 50_000_000));
    }
}

/// Requests are due at 1000 a second; the system stands still from 100 ms before the end to 100 ms after it.
#[test]
fn a_stall_at_the_end_counts_for_all_who_waited() {
    let system = || Slow { each: Duration::ZERO, stalls_at: 400, stall: millis(200), reads: 0 };
    let all_count = || {
        let tally = run_on(system(), Watch::new(), Some(1000.0), millis(400));
        let late = latencies(&tally).len() - latencies(&tally).count_between(0, 80_000_000);
        assert!(late >= 90, "{late} waited");
        tally.ops.abs_diff(400) <= 1 && tally.unsent == 0
    };
    // A busy machine may stand still for longer.
    assert!((0..5).any(|_| all_count()));

    // Whoever asks anew when he is answered has asked before the end. In a second and a half he comes to his hundredth read.
    let system = Slow { each: millis(3), stalls_at: 100, stall: millis(2000), reads: 0 };
    let tally = run_on(system, Watch::new(), None, millis(1500));
    assert!(latencies(&tally).max() >= 2_000_000_000, "{}", latencies(&tally).max());
}

/// A system that does 500 a second is asked for 5000: after as long again as the phase was, the rest is given up, and
/// said.
#[test]
fn what_is_overdue_for_too_long_is_given_up() {
    let system = Slow { each: millis(2), stalls_at: NEVER, stall: Duration::ZERO, reads: 0 };
    let tally = run_on(system, Watch::new(), Some(5000.0), millis(300));
    let all = tally.ops + tally.unsent;
    assert!(all.abs_diff(1500) <= 2, "{} and {}", tally.ops, tally.unsent);
    assert!(tally.unsent > 1000, "{}", tally.unsent);
}
