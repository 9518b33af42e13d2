//! What is done with a FlexSpace whose image was changed.

use crate::media::{Media, Shape};
use crate::run::{Seen, Verdict};
use esker::flex::Space;
use esker_base::rng::Rng;

/// Most bytes that are read one after another.
const READ_MAX: u64 = 256 << 10;
/// A space of a workload is kept about as long as this, in bytes.
const SIZE: u64 = 5000;
/// Operations on an open space.
const OPERATIONS: u64 = 12;

/// Does something. What comes of it is not looked at.
pub(crate) fn operate(space: &Space, rng: &mut Rng) {
    let size = space.size_bytes();
    let offset = if rng.chance(1, 4) { size } else { rng.below(size + 1) };
    let most = if rng.chance(1, 6) { 1400 } else { 200 };
    let mut data = vec![0; 1 + rng.index(most)];
    rng.fill(&mut data);
    let is_long = size > SIZE;
    let length = 1 + rng.below(if is_long { 2500 } else { 300 });
    match rng.below(24) {
        0 | 1 => drop(space.sync()),
        2 => drop(space.checkpoint()),
        3 => drop(space.collect(1 + rng.below(3))),
        4 => drop(space.defrag(offset, rng.below(1500))),
        5 => drop(space.write_filled()),
        6 => drop(space.trim()),
        7 => drop(space.insert_hole(offset, length)),
        8..12 => drop(space.insert_range(offset, &data)),
        12..16 if !is_long => drop(space.write(offset, &data)),
        16..19 if !is_long => drop(space.append(&data)),
        _ => drop(space.collapse_range(offset, length)),
    }
}

/// Opens the space on changed media and does everything with it; then again what is left then.
pub(crate) fn try_open(media: &Media, shape: &Shape, rng: &mut Rng) -> Result<Seen, String> {
    let mut options = shape.space_options(rng.next_u64());
    options.create = rng.chance(1, 2);
    let Ok(space) = media.open_space(&options) else { return Ok(Seen::default()) };
    exercise(&space, rng)?;
    if rng.chance(1, 2) {
        let _ = space.close();
    } else {
        drop(space);
    }
    let again = media.open_space(&shape.space_options(rng.next_u64()));
    let seen = Seen { opened: 1, reopened: u64::from(again.is_ok()), ..Seen::default() };
    if let Ok(space) = again {
        read(&space, rng);
        let _ = space.check();
    }
    Ok(seen)
}

/// Repairs the space on changed media, and uses it then.
pub(crate) fn try_repair(media: &Media, shape: &Shape, rng: &mut Rng) -> Result<Seen, String> {
    let options = shape.space_options(rng.next_u64());
    let Ok(space) = media.repair_space(&options) else { return Ok(Seen::default()) };
    let _ = space.check();
    read(&space, rng);
    let is_closed = space.close().is_ok();
    if let Ok(space) = media.open_space(&shape.space_options(rng.next_u64())) {
        exercise(&space, rng)?;
    }
    Ok(Seen { repaired: u64::from(is_closed), ..Seen::default() })
}

/// An offset in the space, or anywhere.
fn offset(size: u64, rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => size,
        1 => size.wrapping_sub(1 + rng.below(600)),
        2 => rng.next_u64() >> rng.below(64),
        _ => rng.below(size.max(1)),
    }
}

fn read(space: &Space, rng: &mut Rng) {
    let size = space.size_bytes();
    let mut buf = vec![0; 4096];
    let mut at = 0;
    while at < size.min(READ_MAX) {
        let _ = space.read(at, &mut buf);
        at += buf.len() as u64;
    }
    for _ in 0..16 {
        let offset = offset(size, rng);
        let length = rng.index(buf.len());
        let _ = space.read(offset, &mut buf[..length]);
        let _ = space.read_extent(offset, &mut buf);
        let _ = space.next_mark(offset);
    }
}

fn exercise(space: &Space, rng: &mut Rng) -> Verdict {
    read(space, rng);
    let _ = (space.stat(), space.check(), space.report());
    for _ in 0..OPERATIONS {
        if rng.chance(1, 2) {
            operate(space, rng);
            continue;
        }
        let size = space.size_bytes();
        // Not far behind the end: that makes a hole.
        let offset = rng.below(size.saturating_add(600));
        let mut data = vec![0; 1 + rng.index(700)];
        rng.fill(&mut data);
        let done = match rng.below(3) {
            0 => space.write(offset, &data).map(|()| offset),
            1 => space.insert_range(offset, &data).map(|()| offset),
            _ => space.append(&data),
        };
        let Ok(offset) = done else { continue };
        let mut found = vec![0; data.len()];
        if space.read(offset, &mut found).is_ok_and(|_| found != data) {
            return Err("the space: what was written is not what is read".to_owned());
        }
    }
    read(space, rng);
    Ok(())
}
