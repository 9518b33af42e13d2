//! What happens to an image: numbers take other values, blocks change places, files end early.
//!
//! Nothing here knows a structure. Places are where something stands, most of them near the beginning of a unit, where headers
//! are; values are those at which arithmetic breaks, and those of other fields.

use esker_base::rng::Rng;
use std::fmt::Write as _;

/// Sizes that a medium consists of, in bytes, the smallest first: files are whole ones of it.
pub(crate) type Units = [u64; 3];

/// Bytes at the beginning of a unit in which its header stands, most likely.
const HEAD_BYTES: u64 = 64;
/// Most changes of one image.
const CHANGES_MAX: u64 = 12;

/// An image that is being changed: the contents of some files.
pub(crate) struct Mutator<'a> {
    pub(crate) files: &'a mut [Vec<u8>],
    pub(crate) units: Units,
    pub(crate) rng: &'a mut Rng,
    /// What was done, for people.
    pub(crate) words: String,
}

impl Mutator<'_> {
    /// Changes something, at one place or at several.
    pub(crate) fn mutate(&mut self) {
        let count = match self.rng.below(10) {
            0..5 => 1,
            5..8 => 2 + self.rng.below(2),
            _ => 4 + self.rng.below(CHANGES_MAX - 3),
        };
        for _ in 0..count {
            self.change();
        }
    }

    fn change(&mut self) {
        let Some((file, offset)) = self.place() else { return };
        match self.rng.below(32) {
            0..20 => self.number(file, offset),
            20 | 21 => self.varint(file, offset),
            22..24 => {
                let bit = self.rng.below(8);
                self.say(format_args!("file {file}: bit {bit} of {offset}"));
                self.files[file][offset] ^= 1 << bit;
            }
            24 | 25 => self.fill(file, offset),
            26..29 => self.copy(file, offset),
            29 | 30 => self.shift(file, offset),
            _ => self.resize(file),
        }
    }

    fn say(&mut self, words: std::fmt::Arguments<'_>) {
        let comma = if self.words.is_empty() { "" } else { "; " };
        let _ = write!(self.words, "{comma}{words}");
    }

    fn unit(&mut self) -> u64 {
        self.units[self.rng.index(self.units.len())]
    }

    /// A byte of a file that is not empty.
    fn place(&mut self) -> Option<(usize, usize)> {
        let full: Vec<_> = (0..self.files.len()).filter(|at| !self.files[*at].is_empty()).collect();
        let file = *full.get(self.rng.index(full.len().max(1)))?;
        let size = self.files[file].len() as u64;
        let unit = self.unit();
        // Blank units are left out, if that is soon done.
        let offset = (0..16).find_map(|_| {
            let start = self.rng.below(size.div_ceil(unit)) * unit;
            let offset = match self.rng.below(8) {
                0..4 => start + self.rng.below(HEAD_BYTES),
                // Where trailers are.
                4 => start + unit - 1 - self.rng.below(HEAD_BYTES.min(unit)),
                _ => start + self.rng.below(unit),
            };
            let near = self.files[file].get(offset as usize..)?;
            near.iter().take(8).any(|byte| *byte != 0).then_some(offset)
        });
        let offset = offset.unwrap_or_else(|| self.rng.below(size));
        Some((file, (offset as usize).min(self.files[file].len() - 1)))
    }

    /// A number takes another value.
    fn number(&mut self, file: usize, offset: usize) {
        let width = 1 << self.rng.below(4);
        let aligned = if self.rng.chance(1, 4) { offset } else { offset / width * width };
        let Some(old) = read(&self.files[file], aligned, width) else { return };
        let new = self.value(file, old, width) & (u64::MAX >> (64 - 8 * width));
        self.say(format_args!("file {file}: u{} at {aligned}: {old:#x} -> {new:#x}", 8 * width));
        write(&mut self.files[file], aligned, width, new);
    }

    /// A value at which something may break.
    fn value(&mut self, file: usize, old: u64, width: usize) -> u64 {
        let bits = 8 * width as u64;
        match self.rng.below(16) {
            0 => 0,
            1 => u64::MAX - self.rng.below(2),
            2 | 3 => old.wrapping_add(1),
            4 => old.wrapping_sub(1),
            5 => 1 << self.rng.below(bits),
            6 => (1_u64 << self.rng.below(bits)).wrapping_sub(1),
            7 => old ^ 1 << self.rng.below(bits),
            8 => old | 1 << (bits - 1),
            9 => old.wrapping_mul(2),
            10 => self.rng.below(256),
            11 => self.rng.next_u64(),
            12 | 13 => {
                let Some((other, at)) = self.place() else { return 0 };
                read(&self.files[other], at / width * width, width).unwrap_or(0)
            }
            _ => {
                // Sizes, numbers of units, and what is just past them.
                let size =
                    if self.rng.chance(1, 2) { self.files[file].len() as u64 } else { self.unit() };
                let size = if self.rng.chance(1, 3) { size / self.unit().max(1) } else { size };
                size.wrapping_add(self.rng.below(5)).wrapping_sub(2)
            }
        }
    }

    /// A number of variable length becomes as long, or as large, as there is.
    fn varint(&mut self, file: usize, offset: usize) {
        let long = 1 + self.rng.index(10);
        let end = (offset + long).min(self.files[file].len());
        self.say(format_args!("file {file}: varint of {} bytes at {offset}", end - offset));
        let last = self.rng.below(128) as u8;
        let place = &mut self.files[file][offset..end];
        place.fill(0xFF);
        if let Some(end) = place.last_mut() {
            *end = last;
        }
    }

    /// Zeros, ones or anything over some bytes.
    fn fill(&mut self, file: usize, offset: usize) {
        let length = 1 + match self.rng.below(3) {
            0 => self.rng.index(16),
            1 => self.rng.index(600),
            _ => self.unit() as usize - 1,
        };
        let start = if self.rng.chance(1, 2) { offset } else { offset / length * length };
        let end = (start + length).min(self.files[file].len());
        self.say(format_args!("file {file}: {start}..{end} overwritten"));
        let place = &mut self.files[file][start..end];
        match self.rng.below(3) {
            0 => place.fill(0),
            1 => place.fill(0xFF),
            _ => self.rng.fill(place),
        }
    }

    /// A unit stands somewhere else, too, or two change places.
    fn copy(&mut self, file: usize, offset: usize) {
        let Some((other, at)) = self.place() else { return };
        let unit = self.unit() as usize;
        let (from, to) = (offset / unit * unit, at / unit * unit);
        let end = |file: &Vec<u8>, start: usize| (start + unit).min(file.len());
        let one = self.files[file][from..end(&self.files[file], from)].to_vec();
        let two = self.files[other][to..end(&self.files[other], to)].to_vec();
        let swaps = self.rng.chance(1, 2);
        let how = if swaps { "swapped with" } else { "copied over" };
        self.say(format_args!("{unit} bytes at {from} of file {file} {how} {to} of file {other}"));
        put(&mut self.files[other], to, &one);
        if swaps {
            put(&mut self.files[file], from, &two);
        }
    }

    /// What follows, up to the end of a unit, moves by some bytes.
    fn shift(&mut self, file: usize, offset: usize) {
        let unit = self.unit() as usize;
        let end = (offset / unit * unit + unit).min(self.files[file].len());
        let place = &mut self.files[file][offset..end];
        let by = self.rng.index(9).min(place.len());
        let back = self.rng.chance(1, 2);
        if back {
            place.rotate_left(by);
        } else {
            place.rotate_right(by);
        }
        let sign = if back { "-" } else { "+" };
        self.say(format_args!("file {file}: {offset}..{end} moved by {sign}{by}"));
    }

    /// A file ends early, or late.
    fn resize(&mut self, file: usize) {
        let least = self.units[0];
        let size = self.files[file].len() as u64;
        let unit = self.unit();
        let new = match self.rng.below(4) {
            0 => self.rng.below(size / least + 1) * least,
            1 => size.saturating_sub(unit),
            2 => size + unit,
            _ => size + self.rng.below(8) * unit,
        };
        self.say(format_args!("file {file}: {size} bytes become {new}"));
        self.files[file].resize(new as usize, 0);
    }
}

fn read(file: &[u8], offset: usize, width: usize) -> Option<u64> {
    let bytes = file.get(offset..offset + width)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn write(file: &mut [u8], offset: usize, width: usize, value: u64) {
    put(file, offset, &value.to_le_bytes()[..width]);
}

fn put(file: &mut [u8], offset: usize, bytes: &[u8]) {
    let room = file.len().saturating_sub(offset).min(bytes.len());
    file[offset..offset + room].copy_from_slice(&bytes[..room]);
}
