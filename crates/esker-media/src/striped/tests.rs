//! Striped devices over simulated ones: addresses, flushes, identities, and crashes.

use super::*;
use crate::sim::{
    FaultKind, FaultPlan, Image, Initial, SimBlock, SimBlockOptions, SimDevices, Trigger,
};
use esker_base::SiteKind;
use esker_base::rng::Rng;

const SITE: Site = Site::new("test.striped", SiteKind::Write);
const DURABLE: Site = Site::new("test.striped.durable", SiteKind::DurableWrite);
const FLUSH: Site = Site::new("test.striped.flush", SiteKind::Flush);
const UNIT: u64 = 4096;
const MEMBER: u64 = 8192 + 2048 + 10 * UNIT;

fn new(id: u8) -> NewSet {
    NewSet { lead_size_bytes: 2048, unit_size_bytes: UNIT, set_id: [id; 16], replace: false }
}

fn members(devices: &[Arc<SimBlock>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|device| Arc::clone(device) as Arc<dyn BlockDevice>).collect()
}

fn sims(count: usize) -> SimDevices {
    SimDevices::new(count, |index| SimBlockOptions::new(MEMBER, index as u64))
}

fn images(sims: &SimDevices) -> Vec<Image> {
    sims.devices().iter().map(|device| device.image()).collect()
}

fn attach(images: &[Image]) -> SimDevices {
    SimDevices::attach(images, |_| SimBlockOptions::new(MEMBER, 1))
}

fn refusal(images: &[Image], new: Option<&NewSet>) -> String {
    StripedDevice::open(members(attach(images).devices()), new).unwrap_err().to_string()
}

#[test]
fn it_reads_any_bytes_if_all_its_members_do() {
    for members_do in [false, true] {
        let sims = SimDevices::new(2, |index| SimBlockOptions {
            reads_bytes: members_do || index == 0,
            ..SimBlockOptions::new(MEMBER, index as u64)
        });
        let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
        let data: Vec<u8> = (0..=255).cycle().take(3 * 4096).collect();
        device.write_at(SITE, 2048, &[IoSlice::new(&data)]).unwrap();
        let mut found = vec![0; 6001];
        let read = device.read_at(SITE, 2048 + 1003, &mut found);
        match members_do {
            true => assert_eq!(found, data[1003..1003 + 6001]),
            false => assert_eq!(read.unwrap_err().kind(), ErrorKind::InvalidArgument),
        }
    }
}

#[test]
fn it_reads_what_was_written_wherever_units_meet() {
    let sims = sims(3);
    let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
    let size = device.geometry().size_bytes;
    assert_eq!((size, device.member_count()), (2048 + 30 * UNIT, 3));
    let mut expected = vec![0; usize::try_from(size).unwrap()];
    let mut rng = Rng::from_seed(1);
    for round in 0..600 {
        let start = rng.below(size / 512) * 512;
        let length = (1 + rng.below(24)).min((size - start) / 512) * 512;
        let range = usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap();
        if rng.chance(1, 2) {
            rng.fill(&mut expected[range.clone()]);
            let (one, two) = expected[range.clone()].split_at(rng.index(range.len() / 512) * 512);
            let bufs = [IoSlice::new(one), IoSlice::new(two)];
            match rng.below(2) {
                0 => device.write_at(SITE, start, &bufs).unwrap(),
                _ => device.write_durable_at(DURABLE, start, &bufs).unwrap(),
            }
        }
        let mut found = vec![1; range.len()];
        if rng.chance(1, 2) {
            device.read_at(SITE, start, &mut found).unwrap();
        } else {
            let (one, two) = found.split_at_mut(512);
            let mut bufs = [IoSliceMut::new(one), IoSliceMut::new(two)];
            device.read_vectored_at(SITE, start, &mut bufs).unwrap();
        }
        assert!(found == expected[range], "round {round}");
    }
    let spread: Vec<u64> = sims.devices().iter().map(|sim| sim.counters().write_bytes).collect();
    assert!(spread.iter().all(|bytes| *bytes > spread[0] / 2), "{spread:?}");
    assert_eq!(device.counters().write_bytes, spread.iter().sum());
    let beyond = device.read_at(SITE, size, &mut [0; 512]).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn members_come_in_any_order_and_the_smallest_one_decides() {
    let sizes = [MEMBER + 5 * UNIT, MEMBER, MEMBER + 512];
    let sims = SimDevices::new(3, |index| SimBlockOptions::new(sizes[index], index as u64));
    let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
    assert_eq!(device.geometry().size_bytes, 2048 + 30 * UNIT);
    device.write_durable_at(DURABLE, 2048 + UNIT, &[IoSlice::new(&[7; 8192])]).unwrap();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mixed: Vec<_> = order.iter().map(|index| Arc::clone(&sims.devices()[*index])).collect();
        let device = StripedDevice::open(members(&mixed), None).unwrap();
        let mut found = [0; 8192];
        device.read_at(SITE, 2048 + UNIT, &mut found).unwrap();
        assert_eq!(found, [7; 8192], "{order:?}");
        assert_eq!(device.name(), "sim0 + sim1 + sim2");
    }
}

#[test]
fn missing_foreign_doubled_and_blank_members_are_refused_by_name() {
    let (ours, others) = (sims(3), sims(3));
    for (sims, id) in [(&ours, 1), (&others, 2)] {
        StripedDevice::open(members(sims.devices()), Some(&new(id))).unwrap();
    }
    let (ours, others) = (images(&ours), images(&others));
    let [a, b, c] = [&ours[0], &ours[1], &ours[2]].map(Clone::clone);
    let blank = Image::filled(MEMBER, 0);
    let words = refusal(&[a.clone(), c.clone()], None);
    assert!(words.contains("of 3 members, these are missing: 1"), "{words}");
    let words = refusal(&[b.clone(), a.clone(), others[2].clone()], None);
    assert!(words.contains("another striped store") && words.contains("sim2"), "{words}");
    let words = refusal(&[a.clone(), b.clone(), b.clone()], None);
    assert!(words.contains("both this and sim1") && words.contains("sim2"), "{words}");
    let words = refusal(&[a.clone(), b.clone(), c.clone(), b.clone()], None);
    assert!(words.contains("both this and sim1") && words.contains("sim3"), "{words}");
    // A lost member is never taken for one that was not made yet, least of all the first.
    for lost in 0..3 {
        let mut images = ours.clone();
        images[lost] = blank.clone();
        let words = refusal(&images, Some(&new(3)));
        assert!(words.contains(&format!("missing: {lost}")), "{words}");
        assert!(words.contains(&format!("sim{lost}")), "{words}");
    }
    let words = refusal(&[a.clone(), b.clone(), c.clone(), blank.clone()], Some(&new(3)));
    assert!(words.contains("sim3") && words.contains("nothing is on this device"), "{words}");
    let words = refusal(&[blank.clone(), blank.clone()], None);
    assert!(words.contains("no striped store"), "{words}");
    let words = refusal(&[Image::filled(MEMBER, 9), blank.clone()], Some(&new(3)));
    assert!(words.contains("no member") && words.contains("sim0"), "{words}");
    let device = attach(&[b]);
    let membership = StripedDevice::membership(&*device.devices()[0]).unwrap();
    assert_eq!(membership, Some((1, 3)));
    assert_eq!(StripedDevice::membership(&*attach(&[blank]).devices()[0]).unwrap(), None);
}

#[test]
fn either_copy_of_a_header_is_enough_and_the_other_is_repaired() {
    let sims = sims(2);
    StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
    for (first, second) in [(0, 4096), (4096, 0)] {
        let mut damaged = images(&sims);
        damaged[1].flip(first + 20, 3);
        let repaired = attach(&damaged);
        StripedDevice::open(members(repaired.devices()), None).unwrap();
        let mut damaged = images(&repaired);
        damaged[1].flip(second + 20, 3);
        StripedDevice::open(members(attach(&damaged).devices()), None).unwrap();
    }
    let mut damaged = images(&sims);
    damaged[1].flip(20, 3);
    damaged[1].flip(4096 + 20, 3);
    let words = refusal(&damaged, Some(&new(3)));
    assert!(words.contains("corrupted") && words.contains("sim1"), "{words}");
    // Told to, it starts over.
    let anew = NewSet { replace: true, ..new(4) };
    StripedDevice::open(members(attach(&damaged).devices()), Some(&anew)).unwrap();
}

#[test]
fn a_flush_covers_every_member_that_was_written_and_no_other() {
    let sims = sims(3);
    let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
    let flushes =
        || -> Vec<u64> { sims.devices().iter().map(|sim| sim.counters().flushes).collect() };
    let before = flushes();
    let since = |before: &[u64]| -> Vec<u64> {
        flushes().iter().zip(before).map(|(now, then)| now - then).collect()
    };
    device.flush(FLUSH).unwrap();
    assert_eq!(since(&before), [1, 1, 1], "what an earlier process wrote is covered");
    let before = flushes();
    device.flush(FLUSH).unwrap();
    assert_eq!(since(&before), [0, 0, 0]);
    device.write_at(SITE, 2048 + UNIT, &[IoSlice::new(&[1; 512])]).unwrap();
    device.flush(FLUSH).unwrap();
    assert_eq!(since(&before), [0, 1, 0]);
    device.write_at(SITE, 2048 + 2 * UNIT - 512, &[IoSlice::new(&[1; 1024])]).unwrap();
    device.write_durable_at(DURABLE, 2048, &[IoSlice::new(&[1; 512])]).unwrap();
    device.flush(FLUSH).unwrap();
    assert_eq!(since(&before), [0, 2, 1]);
}

#[test]
fn after_a_failed_flush_of_one_member_none_succeeds() {
    for in_task in [false, true] {
        let test = || {
            let sims = sims(3);
            let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
            let fails = FaultPlan::none().with(FaultKind::FlushError, Trigger::Nth(1));
            sims.devices()[1].set_faults(fails);
            device.write_at(SITE, 2048, &[IoSlice::new(&[1; 12288])]).unwrap();
            let error = device.flush(FLUSH).unwrap_err();
            assert!(error.to_string().contains("sim1"), "{error}");
            device.flush(FLUSH).unwrap_err();
            device.write_durable_at(DURABLE, 2048, &[IoSlice::new(&[1; 512])]).unwrap_err();
            device.read_at(SITE, 2048, &mut [0; 512]).unwrap();
        };
        if in_task {
            esker_trt::sim::run(1, test).outcome.unwrap();
        } else {
            test();
        }
    }
}

#[test]
fn an_error_names_the_member_and_the_place_there() {
    let sims = sims(2);
    let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
    let fails = FaultPlan::none().with(FaultKind::AnyError, Trigger::FromNth(1));
    sims.devices()[1].set_faults(fails);
    device.read_at(SITE, 2048, &mut [0; 512]).unwrap();
    let error = device.read_at(SITE, 2048 + UNIT + 512, &mut [0; 512]).unwrap_err();
    assert_eq!(error.device_name(), Some("sim1"));
    assert_eq!(error.range(), Some((8192 + 2048 + 512, 512)));
}

#[test]
fn a_crash_while_a_set_is_made_leaves_one_that_opens_or_can_be_made() {
    let (mut opened, mut made) = (0, 0);
    let mut recycled = images(&formed())[0].clone();
    (8192..8192 + 1024).for_each(|offset| recycled.flip(offset, 3));
    for earlier in [Initial::Zeros, Initial::Recycled(recycled)] {
        let sims = SimDevices::new(3, |index| {
            SimBlockOptions::new(MEMBER, index as u64).initial(earlier.clone())
        });
        // Over blank devices, or told to replace what is there.
        let replace = matches!(earlier, Initial::Recycled(_));
        let how = NewSet { replace, ..new(5) };
        StripedDevice::open(members(sims.devices()), Some(&how)).unwrap();
        let traces = sims.traces();
        for position in 0..=sims.position() {
            for seed in 0..40 {
                let survived = attach(&SimDevices::cut(&traces, position, seed * 1000 + position));
                match StripedDevice::open(members(survived.devices()), None) {
                    Ok(device) => {
                        let mut lead = [1; 1024];
                        device.read_at(SITE, 0, &mut lead).unwrap();
                        assert_eq!(lead, [0; 1024], "position {position}: an earlier store's");
                        opened += 1;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                        assert!(position < sims.position(), "made, and not there: {error}");
                        let device = StripedDevice::open(members(survived.devices()), Some(&how));
                        assert!(device.is_ok(), "position {position}, seed {seed}: {device:?}");
                        made += 1;
                    }
                }
            }
        }
    }
    assert!(opened > 100 && made > 100, "{opened} {made}");
}

/// A set of one, to be replaced.
fn formed() -> SimDevices {
    let sims = sims(1);
    StripedDevice::open(members(sims.devices()), Some(&new(9))).unwrap();
    sims
}

#[test]
fn flushes_side_by_side_cover_what_each_was_asked_for() {
    for seed in 0..60 {
        let outcome = esker_trt::sim::run(seed, move || {
            let sims = sims(3);
            let device = StripedDevice::open(members(sims.devices()), Some(&new(1))).unwrap();
            let device = Arc::new(device);
            let tasks: Vec<_> = (0..6_u64)
                .map(|task| {
                    let device = Arc::clone(&device);
                    let power = sims.devices()[0].clone();
                    esker_trt::spawn(move || {
                        let mut done = Vec::new();
                        for round in 0..6_u64 {
                            let offset = 2048 + (task * 7 + round) % 30 * UNIT + task * 512;
                            let byte = u8::try_from(1 + task * 10 + round).unwrap();
                            let bytes = [byte; 512];
                            device.write_at(SITE, offset, &[IoSlice::new(&bytes)]).unwrap();
                            device.flush(FLUSH).unwrap();
                            done.push((power.position(), offset, byte));
                        }
                        done
                    })
                })
                .collect();
            let done: Vec<_> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
            (sims.traces(), done)
        });
        let (traces, done) = outcome.outcome.unwrap();
        for writes in &done {
            for (position, offset, byte) in writes {
                let survived = attach(&SimDevices::cut(&traces, *position, 4 * seed));
                let device = StripedDevice::open(members(survived.devices()), None).unwrap();
                let mut found = [0; 512];
                device.read_at(SITE, *offset, &mut found).unwrap();
                assert_eq!(found, [*byte; 512], "seed {seed}: flushed, and lost by a cut");
            }
        }
    }
}

#[test]
fn a_member_that_holds_something_behind_its_first_blocks_is_refused_by_name() {
    let sims = sims(2);
    let devices = sims.devices();
    devices[1].write_at(SITE, 1024, &[IoSlice::new(&[1; 512])]).unwrap();
    let before = images(&sims);
    let error = StripedDevice::open(members(devices), Some(&new(1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let words = error.to_string();
    assert!(words.contains("holds something") && words.contains(devices[1].name()), "{words}");
    assert!(images(&sims) == before);
    let replace = NewSet { replace: true, ..new(1) };
    StripedDevice::open(members(devices), Some(&replace)).unwrap();
}

#[test]
fn a_first_copy_that_cannot_be_read_leaves_the_other_one() {
    let made = sims(3);
    let device = StripedDevice::open(members(made.devices()), Some(&new(1))).unwrap();
    device.write_durable_at(DURABLE, 2048, &[IoSlice::new(&[7; 3 * 4096])]).unwrap();
    let images = images(&made);
    let failing = |count| {
        let sims = attach(&images);
        let mut plan = FaultPlan::none();
        for nth in 1..=count {
            plan = plan.with(FaultKind::ReadError, Trigger::Nth(nth));
        }
        sims.devices()[1].set_faults(plan);
        sims
    };
    let sims = failing(1);
    assert_eq!(StripedDevice::membership(&*sims.devices()[1]).unwrap(), Some((1, 3)));
    let sims = failing(1);
    let device = StripedDevice::open(members(sims.devices()), None).unwrap();
    let mut found = [0; 3 * 4096];
    device.read_at(SITE, 2048, &mut found).unwrap();
    assert_eq!(found, [7; 3 * 4096]);
    // One of which nothing can be read is not blank.
    for new in [None, Some(&new(2))] {
        let error = StripedDevice::open(members(failing(2).devices()), new).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
    assert_eq!(
        StripedDevice::membership(&*failing(2).devices()[1]).unwrap_err().kind(),
        ErrorKind::Io
    );
}

#[test]
fn a_device_that_holds_something_else_is_no_member_whatever_cannot_be_read() {
    for (byte, expected) in [(7, Ok(None)), (0, Err(ErrorKind::Io))] {
        let sim = SimBlock::new(SimBlockOptions::new(MEMBER, 1));
        sim.write_durable_at(DURABLE, 4096, &[IoSlice::new(&[byte; 512])]).unwrap();
        sim.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::Nth(1)));
        assert_eq!(StripedDevice::membership(&sim).map_err(|error| error.kind()), expected);
    }
}
