//! Several devices that lose power together.

use super::*;
use crate::block::BlockDevice;
use esker_base::{Site, SiteKind};
use std::collections::BTreeSet;
use std::io::IoSlice;

const WRITE: Site = Site::new("test.devices.write", SiteKind::Write);
const FLUSH: Site = Site::new("test.devices.flush", SiteKind::Flush);

#[test]
fn one_cut_leaves_each_device_its_own_part() {
    let devices = SimDevices::new(2, |index| SimBlockOptions::new(4096, index as u64));
    let put = |index: usize, byte: u8| {
        let device = &devices.devices()[index];
        device.write_at(WRITE, 0, &[IoSlice::new(&[byte; 512])]).unwrap();
    };
    put(0, 1);
    put(1, 1);
    devices.devices()[0].flush(FLUSH).unwrap();
    let between = devices.position();
    put(0, 2);
    devices.devices()[1].flush(FLUSH).unwrap();

    let traces = devices.traces();
    let survivors = |position| -> BTreeSet<(u8, u8)> {
        let cuts = (0..200).map(|seed| SimDevices::cut(&traces, position, seed));
        cuts.map(|images| (images[0].to_vec()[0], images[1].to_vec()[0])).collect()
    };
    assert_eq!(survivors(between), BTreeSet::from([(1, 0), (1, 1)]));
    assert_eq!(survivors(devices.position()), BTreeSet::from([(1, 1), (2, 1)]));
    assert_eq!(survivors(0), BTreeSet::from([(0, 0)]));
}

/// A device with so little pending that all of its states can be counted.
#[test]
fn everything_survives_of_a_device_as_often_as_nothing() {
    let devices = SimDevices::new(1, |index| SimBlockOptions::new(4096, index as u64));
    devices.devices()[0].write_at(WRITE, 0, &[IoSlice::new(&[1; 2048])]).unwrap();
    let traces = devices.traces();
    let kept = |seed| {
        let images = SimDevices::cut(&traces, devices.position(), seed);
        images[0].to_vec().iter().filter(|byte| **byte == 1).count()
    };
    let kept: Vec<usize> = (0..400).map(kept).collect();
    let times = |count: usize| kept.iter().filter(|kept| **kept == count).count();
    assert!(times(0) > 80 && times(2048) > 80, "{} and {}", times(0), times(2048));
}

#[test]
fn an_older_image_can_be_attached_again() {
    let old = Image::filled(4096, 3);
    let new = Image::filled(4096, 4);
    let devices = SimDevices::attach(&[old, new], |_| SimBlockOptions::new(4096, 0));
    let first: Vec<u8> =
        devices.devices().iter().map(|device| device.image().to_vec()[0]).collect();
    assert_eq!(first, [3, 4]);
    assert_eq!(devices.devices()[1].name(), "sim1");
}
