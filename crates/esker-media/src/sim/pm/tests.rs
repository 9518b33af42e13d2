//! Simulated persistent memory: what flushes and fences make durable.

use super::*;
use crate::sim::Trigger;
use esker_base::SiteKind;

const STORE: Site = Site::new("test.simpm.store", SiteKind::Write);
const FLUSH: Site = Site::new("test.simpm.flush", SiteKind::Flush);
const FENCE: Site = Site::new("test.simpm.fence", SiteKind::Fence);

#[test]
fn stores_of_any_kind_read_back() {
    let memory = SimPm::new(SimPmOptions::new(4096, 1));
    memory.store(STORE, 5, &[1, 2, 3]).unwrap();
    memory.store_u64(STORE, 8, 0x0807_0605_0403_0201).unwrap();
    memory.ntstore(STORE, 64, &[9; 16]).unwrap();
    let mut buf = [0; 16];
    memory.read(0, &mut buf).unwrap();
    assert_eq!(buf, [0, 0, 0, 0, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(memory.load_u64(72).unwrap(), 0x0909_0909_0909_0909);
    assert_eq!(memory.load_u64(4).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(memory.ntstore(STORE, 4, &[0; 8]).is_err());
    assert!(memory.store(STORE, 4095, &[0; 2]).is_err());
    assert_eq!(memory.visits().count("test.simpm.store"), 3);
}

#[test]
fn poison_is_corruption_until_the_whole_line_is_overwritten() {
    let memory = SimPm::new(SimPmOptions::new(4096, 1));
    memory.poison(100, 1);
    let error = memory.read(0, &mut [0; 128]).unwrap_err();
    assert_eq!((error.kind(), error.range()), (ErrorKind::Corrupted, Some((64, 64))));
    memory.store(STORE, 64, &[1; 8]).unwrap();
    assert!(memory.load_u64(64).is_err(), "a part does not repair it");
    memory.store(STORE, 64, &[1; 64]).unwrap();
    assert_eq!(memory.load_u64(64).unwrap(), 0x0101_0101_0101_0101);
}

#[test]
fn planned_faults_hit_the_nth_call() {
    let plan = FaultPlan::none()
        .with(FaultKind::ReadError, Trigger::Nth(2))
        .with(FaultKind::FlushError, Trigger::Nth(1));
    let memory = SimPm::new(SimPmOptions::new(4096, 1).faults(plan));
    assert!(memory.load_u64(0).is_ok());
    assert_eq!(memory.load_u64(0).unwrap_err().kind(), ErrorKind::Corrupted);
    assert!(memory.load_u64(64).is_ok());
    assert_eq!(memory.fence(FENCE).unwrap_err().kind(), ErrorKind::Io);
    assert!(memory.fence(FENCE).unwrap_err().to_string().contains("earlier"));
    memory.flush(FLUSH, 0, 64).unwrap();
}
