//! The simulated block device: what reads see, what faults do.

use super::*;
use crate::sim::Trigger;
use esker_base::SiteKind;

const WRITE: Site = Site::new("test.sim.write", SiteKind::Write);
const DURABLE: Site = Site::new("test.sim.durable", SiteKind::DurableWrite);
const FLUSH: Site = Site::new("test.sim.flush", SiteKind::Flush);
const READ: Site = Site::new("test.sim.read", SiteKind::Read);

fn device(faults: FaultPlan) -> SimBlock {
    SimBlock::new(SimBlockOptions::new(64 << 10, 7).faults(faults))
}

fn put(device: &SimBlock, offset: u64, byte: u8, length: usize) -> Result<()> {
    device.write_at(WRITE, offset, &[IoSlice::new(&vec![byte; length])])
}

fn get(device: &SimBlock, offset: u64) -> Result<u8> {
    let mut buf = [0; 512];
    device.read_at(READ, offset, &mut buf)?;
    assert!(buf.iter().all(|byte| *byte == buf[0]), "one write, one value");
    Ok(buf[0])
}

#[test]
fn vectored_writes_read_back_and_are_counted() {
    let device = device(FaultPlan::none());
    let pieces = [IoSlice::new(&[1; 512]), IoSlice::new(&[2; 1024])];
    device.write_at(WRITE, 512, &pieces).unwrap();
    assert_eq!([0, 512, 1024, 1536, 2048].map(|at| get(&device, at).unwrap()), [0, 1, 2, 2, 0]);
    device.flush(FLUSH).unwrap();
    let counters = device.counters();
    assert_eq!((counters.writes, counters.write_bytes), (1, 1536));
    assert_eq!((counters.reads, counters.flushes), (5, 1));
    assert_eq!(device.visits().count("test.sim.read"), 5);
}

#[test]
fn unaligned_and_outside_ranges_are_refused() {
    let device = device(FaultPlan::none());
    for (offset, length) in [(1, 512), (0, 511), (64 << 10, 512), (u64::MAX - 511, 512)] {
        let error = put(&device, offset, 1, length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{offset} {length}");
    }
    assert_eq!(device.trace().len(), 0);
}

#[test]
fn a_failed_flush_is_final() {
    let device = device(FaultPlan::none().with(FaultKind::FlushError, Trigger::Nth(1)));
    put(&device, 0, 1, 512).unwrap();
    assert_eq!(device.flush(FLUSH).unwrap_err().kind(), ErrorKind::Io);
    let again = device.flush(FLUSH).unwrap_err().to_string();
    assert!(again.contains("an earlier flush failed"), "{again}");
    assert!(device.write_durable_at(DURABLE, 0, &[IoSlice::new(&[1; 512])]).is_err());
    put(&device, 0, 2, 512).unwrap();
    assert_eq!(get(&device, 0).unwrap(), 2, "reads and plain writes go on");
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    assert_eq!(replay.durable().to_vec()[0], 0, "nothing that it covered is settled");
}

#[test]
fn each_planned_fault_shows_as_described() {
    let at = |kind| FaultPlan::none().with(kind, Trigger::Nth(1));
    let lost = device(at(FaultKind::LostWrite));
    put(&lost, 0, 9, 512).unwrap();
    assert_eq!(get(&lost, 0).unwrap(), 0);

    let full = device(at(FaultKind::NoSpace));
    assert_eq!(put(&full, 0, 9, 512).unwrap_err().kind(), ErrorKind::NoSpace);
    put(&full, 0, 9, 512).unwrap();

    let astray = device(at(FaultKind::MisdirectedWrite));
    put(&astray, 32 << 10, 9, 512).unwrap();
    assert_eq!(get(&astray, 32 << 10).unwrap(), 0);
    assert_eq!(astray.image().to_vec().iter().filter(|byte| **byte == 9).count(), 512);

    let flips = device(at(FaultKind::ReadFlip));
    let mut buf = [0; 512];
    flips.read_at(READ, 0, &mut buf).unwrap();
    assert_eq!(buf.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    flips.read_at(READ, 0, &mut buf).unwrap();
    assert_eq!(buf, [0; 512], "the medium was right");

    let rots = device(at(FaultKind::RestFlip));
    rots.read_at(READ, 0, &mut buf).unwrap();
    assert_eq!(buf.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    let first = buf;
    rots.read_at(READ, 0, &mut buf).unwrap();
    assert_eq!(buf, first, "the medium is wrong for good");

    let stuck = device(at(FaultKind::Stuck));
    assert_eq!(put(&stuck, 0, 9, 512).unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn sweeping_the_nth_call_reaches_every_call_and_ends() {
    let scenario = |device: &SimBlock| -> Result<u8> {
        put(device, 0, 1, 1024)?;
        device.flush(FLUSH)?;
        device.write_durable_at(DURABLE, 1024, &[IoSlice::new(&[2; 512])])?;
        device.discard(WRITE, 2048, 512)?;
        get(device, 0)
    };
    let mut failures = 0;
    for nth in 1.. {
        let plan = FaultPlan::none().with(FaultKind::AnyError, Trigger::Nth(nth));
        match scenario(&device(plan)) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
            Ok(value) => {
                assert_eq!(value, 1);
                break;
            }
        }
        failures += 1;
    }
    assert_eq!(failures, 5);
}

#[test]
fn the_same_seed_gives_the_same_recording() {
    let run = |seed| {
        let options = SimBlockOptions::new(64 << 10, seed).initial(Initial::Random);
        let device = SimBlock::new(options);
        for index in 0..50 {
            put(&device, index % 16 * 512, index.to_le_bytes()[0], 512).unwrap();
            if index % 7 == 0 {
                device.discard(WRITE, 8192, 4096).unwrap();
                device.flush(FLUSH).unwrap();
            }
        }
        (device.trace().hash(), device.image().hash(512))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[cfg(feature = "mutants")]
#[test]
fn a_disabled_site_makes_nothing_durable() {
    const MUTANT: Site = Site::new("test.sim.mutant", SiteKind::Flush);
    let device = device(FaultPlan::none());
    put(&device, 0, 1, 512).unwrap();
    esker_base::site::switch::disable(Some(MUTANT));
    device.flush(MUTANT).unwrap();
    device.write_durable_at(MUTANT, 512, &[IoSlice::new(&[1; 512])]).unwrap();
    esker_base::site::switch::disable(None);
    let trace = device.trace();
    let mut replay = trace.replay();
    replay.advance_to(u64::MAX);
    assert_eq!(replay.pending_count(), 2);
}

#[test]
fn calls_of_tasks_overlap_and_complete_out_of_order() {
    use std::rc::Rc;
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let report = esker_trt::sim::run(seed, move || {
            let device = Rc::new(SimBlock::new(SimBlockOptions::new(64 << 10, seed)));
            let tasks: Vec<_> = (0..3_u64)
                .map(|index| {
                    let device = Rc::clone(&device);
                    esker_trt::spawn(move || put(&device, index * 512, 1, 512))
                })
                .collect();
            for task in tasks {
                task.join().unwrap().unwrap();
            }
            let ends = device.trace().events.into_iter().filter_map(|event| match event.kind {
                EventKind::WriteEnd { id, .. } => Some(id),
                _ => None,
            });
            ends.collect::<Vec<_>>()
        });
        orders.insert(report.outcome.unwrap());
    }
    assert!(orders.len() >= 4, "{orders:?}");
}

#[test]
fn a_read_beside_a_write_meets_each_unit_as_it_was_or_as_it_will_be() {
    let (mut mixed, mut seen) = (0, [0; 2]);
    for seed in 0..60 {
        let outcome = esker_trt::sim::run(seed, move || {
            let device = Arc::new(SimBlock::new(SimBlockOptions::new(64 << 10, seed)));
            put(&device, 0, 1, 2048).unwrap();
            let writer = Arc::clone(&device);
            let write = esker_trt::spawn(move || put(&writer, 0, 2, 2048).unwrap());
            let mut buf = [0; 2048];
            device.read_at(READ, 0, &mut buf).unwrap();
            write.join().unwrap();
            let (units, _) = buf.as_chunks::<512>();
            assert!(units.iter().all(|unit| unit.iter().all(|byte| *byte == unit[0])));
            assert_eq!(get(&device, 512).unwrap(), 2, "it has ended");
            units.iter().map(|unit| usize::from(unit[0]) - 1).collect::<Vec<_>>()
        });
        let units = outcome.outcome.unwrap();
        mixed += u32::from(units.iter().any(|unit| *unit != units[0]));
        units.into_iter().for_each(|unit| seen[unit] += 1);
    }
    assert!(mixed > 10 && seen.iter().all(|count| *count > 20), "{mixed}, {seen:?}");
}

#[test]
fn a_write_that_failed_leaves_any_of_its_units() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let faults = FaultPlan::none().with(FaultKind::WriteError, Trigger::Nth(2));
        let device = SimBlock::new(SimBlockOptions::new(64 << 10, seed).faults(faults));
        put(&device, 0, 1, 1536).unwrap();
        put(&device, 0, 2, 1536).unwrap_err();
        seen.insert([0, 512, 1024].map(|at| get(&device, at).unwrap()));
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}
