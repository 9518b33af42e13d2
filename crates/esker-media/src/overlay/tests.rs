//! An overlay against a model of bytes, and what is below it.

use super::*;
use crate::sim::{FaultKind, FaultPlan, SimBlock, SimBlockOptions, Trigger};
use esker_base::rng::Rng;
use esker_base::{ErrorKind, SiteKind};

const READ: Site = Site::new("test.overlay.read", SiteKind::Read);
const WRITE: Site = Site::new("test.overlay.write", SiteKind::Write);
const BLOCK: u64 = 512;
const SIZE: u64 = 32 * BLOCK;

/// A device with bytes on it, and those.
fn below(reads_bytes: bool) -> (Arc<SimBlock>, Vec<u8>) {
    let device = SimBlock::new(SimBlockOptions { reads_bytes, ..SimBlockOptions::new(SIZE, 7) });
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at / BLOCK * 7 + at).to_le_bytes()[0]).collect();
    device.write_at(WRITE, 0, &[IoSlice::new(&bytes)]).unwrap();
    (Arc::new(device), bytes)
}

fn whole(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().size_bytes).unwrap()];
    device.read_at(READ, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn it_has_what_was_written_over_what_is_below() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let (device, was) = below(seed % 2 == 0);
        let overlay = OverlayDevice::over(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let mut model = was.clone();
        for step in 0..60_u8 {
            let blocks = model.len() as u64 / BLOCK;
            let first = rng.below(blocks);
            let count = 1 + rng.below((blocks - first).min(6));
            let (start, end) = (place(first * BLOCK), place((first + count) * BLOCK));
            if rng.below(12) == 0 {
                overlay.reserve(WRITE, first * BLOCK, count * BLOCK + SIZE).unwrap();
                model.resize(model.len().max(end + place(SIZE)), 0);
            } else if rng.below(2) == 0 {
                let bytes: Vec<u8> = (start..end).map(|at| at.to_le_bytes()[0] ^ step).collect();
                // Pieces that end where no block does.
                let (one, two) = bytes.split_at(place(rng.below(bytes.len() as u64)));
                let pieces = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)];
                overlay.write_at(WRITE, first * BLOCK, &pieces).unwrap();
                model[start..end].copy_from_slice(&bytes);
            }
            let (mut start, mut end) = (start, end);
            if overlay.reads_bytes() {
                start += place(rng.below(BLOCK));
                end -= place(rng.below(BLOCK)).min(end - start);
            }
            let mut read = vec![0xEE; end - start];
            overlay.read_at(READ, start as u64, &mut read).unwrap();
            assert_eq!(read, model[start..end], "seed {seed}");
            let mut many = vec![vec![0; 1024]; 3];
            let starts = [0, 10 * 512, 28 * 512];
            let mut reads: Vec<(u64, &mut [u8])> =
                many.iter_mut().zip(starts).map(|(buf, at)| (at as u64, &mut buf[..])).collect();
            overlay.read_many_at(READ, &mut reads).unwrap();
            let mut vectored = [vec![0; 512], vec![0; 512]];
            let mut pieces = vectored.each_mut().map(|piece| IoSliceMut::new(piece));
            let at = place(first.min(blocks - 2) * BLOCK);
            overlay.read_vectored_at(READ, at as u64, &mut pieces).unwrap();
            assert_eq!(vectored.concat(), model[at..at + 1024], "seed {seed}");
            for (buf, at) in many.iter().zip(starts) {
                assert_eq!(*buf, model[at..at + 1024], "seed {seed}");
            }
        }
        assert_eq!(whole(&overlay), model);
        overlay.flush(WRITE).unwrap();
        overlay.discard(WRITE, 0, SIZE).unwrap();
        assert_eq!(whole(&*device), was, "nothing is changed below");
    }
}

#[test]
fn a_block_that_was_written_is_read_whatever_is_wrong_below() {
    let (device, _) = below(false);
    device.set_faults(FaultPlan::none().with(FaultKind::ReadError, Trigger::FromNth(1)));
    let overlay = OverlayDevice::over(device);
    let mut block = [0; 512];
    assert_eq!(overlay.read_at(READ, 512, &mut block).unwrap_err().kind(), ErrorKind::Io);
    overlay.write_durable_at(WRITE, 512, &[IoSlice::new(&[9; 512])]).unwrap();
    overlay.read_at(READ, 512, &mut block).unwrap();
    assert_eq!(block, [9; 512]);
}

#[test]
fn a_blank_one_has_zeros_and_what_does_not_fit_is_refused() {
    let (device, _) = below(false);
    let overlay = OverlayDevice::blank_beside(device, 2 * BLOCK);
    assert_eq!(whole(&overlay), [0; 1024]);
    let refused = [
        overlay.write_at(WRITE, 2 * BLOCK, &[IoSlice::new(&[1; 512])]),
        overlay.write_at(WRITE, 100, &[IoSlice::new(&[1; 512])]),
        overlay.write_at(WRITE, 0, &[IoSlice::new(&[1; 100])]),
        overlay.read_at(READ, 100, &mut [0; 512]),
        overlay.reserve(WRITE, 0, 1000),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    overlay.reserve(WRITE, 2 * BLOCK, BLOCK).unwrap();
    overlay.write_at(WRITE, 2 * BLOCK, &[IoSlice::new(&[1; 512])]).unwrap();
    assert_eq!(whole(&overlay)[1000..1030], [[0; 24].as_slice(), &[1; 6]].concat());
}
