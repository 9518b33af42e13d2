//! Cuts in the middle of one write: some of its blocks are there, what was not flushed before is not.

use esker_base::Site;
use esker_media::sim::{Image, SimDevices};

const BLOCK: u64 = 512;

/// What a cut leaves right before the last time that `flush` passed on device `index`: what was durable, and of
/// what that flush was to make durable the bytes from `from` up to `to`, as the device has them now.
pub(crate) fn cut(
    devices: &SimDevices,
    index: usize,
    flush: Site,
    (from, to): (u64, u64),
) -> Vec<Image> {
    let traces = devices.traces();
    let mut replay = traces[index].replay();
    let mut position = 0;
    loop {
        if replay.next_site() == Some(flush) {
            position = replay.position();
        }
        if !replay.step() {
            break;
        }
    }
    let images = traces.iter().map(|trace| {
        let mut replay = trace.replay();
        replay.advance_to(position);
        replay.durable().clone()
    });
    let mut images: Vec<_> = images.collect();
    copy(&devices.devices()[index].image(), &mut images[index], (from, to));
    images
}

/// Puts the blocks of one image in place of those of another one.
pub(crate) fn copy(source: &Image, target: &mut Image, (from, to): (u64, u64)) {
    for at in (from..to).step_by(BLOCK as usize) {
        let mut block = [0; BLOCK as usize];
        source.read(at, &mut block);
        target.write(at, &block);
    }
}
