//! Contents as bytes, part by part, and back (uDepot §4.4: index tables are flushed to storage to
//! make startup fast).
//!
//! A part is what stood in some consecutive homes at one moment, as little-endian words of 64 bits:
//!
//! ```text
//! word 0        | magic 32 | level 8 | 0 (8) | groups 16 |     from the top
//! word 1        first hash of the first home
//! word 2        | overflow entries 32 | entries 32 |
//! counts        entries of each group of 32 homes, 16 bits each, four to a word from the bottom
//! entries       | link 48 | home within the group 5 | tag 11 |  as in the tables, group by group
//! overflow      two words each: hash; | link 48 | 0 (8) | known bits 8 |
//! ```
//!
//! Every entry stands under as much of its hash as the directory knew, so that the importing
//! directory may have other sizes. There is no checksum: whoever stores parts adds one. Damage that
//! no rule is against gives other entries, but nothing worse.

use super::Directory;
use crate::entry::{FREE, Known, Tag, WINDOW, link_of, with_within, within_of};
use crate::link::Link;
use crate::reclaim::pin;
use crate::table::{LEVEL_MIN, Part};
use esker_base::Error;
use esker_base::Result;

const MAGIC: u64 = 0x4553_4B49;
/// Homes in a part: a region, some 2 KiB.
const PART: usize = 256;
/// Homes whose entries stand together, told apart as in a table.
const GROUP: usize = WINDOW;
const HEAD: usize = 3;
/// Greatest level of a part: behind it there is room for a tag.
const LEVEL_END: u32 = 54;

impl Directory {
    /// The part of the contents that begins at `cursor` (0 to begin with), in the module's form, and
    /// the cursor of the next one; `None` at the end. A part is a consistent copy of its homes; what
    /// changes between two parts is in neither, either or both. Takes one region's lock.
    #[must_use]
    pub fn export(&self, cursor: u64) -> Option<(Vec<u8>, u64)> {
        let pin = pin();
        let root = self.root.load(&pin);
        let (words, next) = root.visit(cursor, PART, &pin, |part| {
            let (first, last) = part.shape().hashes(&part.homes);
            words(part, first, &root.overflow().within(first, last))
        })?;
        Some((words.iter().flat_map(|word| word.to_le_bytes()).collect(), next))
    }

    /// Adds those entries of a part whose links `keep` wants; gives the number of all of them. Parts may come in any order
    /// and from several threads at once. Fastest, and without loss of tag bits, into an empty directory that was made for as
    /// many entries.
    ///
    /// # Errors
    /// `Corrupted` if the bytes are no part; nothing was added then.
    pub fn import(&self, part: &[u8], mut keep: impl FnMut(Link) -> bool) -> Result<u64> {
        let mut entries = Vec::new();
        read(part, &mut entries)?;
        let count = entries.len() as u64;
        entries.retain(|(_, link)| keep(*link));
        let pin = pin();
        let mut rest = &entries[..];
        while let [(known, link), others @ ..] = rest {
            let table = self.root.load(&pin).table(known.hash, &pin);
            let run =
                table.filter(|table| !table.is_full()).map_or(0, |table| table.insert_run(rest));
            rest = rest.get(run..).unwrap_or(&[]);
            if run == 0 {
                self.insert_known(*known, *link, &pin);
                rest = others;
            }
        }
        Ok(count)
    }

    /// Number of entries in a part, as it says itself.
    #[must_use]
    pub fn entries_of(part: &[u8]) -> u64 {
        let counts = part.as_chunks::<8>().0.get(HEAD - 1);
        counts.map_or(0, |counts| {
            let counts = u64::from_le_bytes(*counts);
            (counts & u64::from(u32::MAX)) + (counts >> 32)
        })
    }
}

fn words(part: &Part<'_>, first: u64, overflow: &[(Known, Link)]) -> Vec<u64> {
    let groups = part.homes.len().div_ceil(GROUP);
    let mut entries: Vec<(usize, u64)> = Vec::new();
    part.each(|home, entry| entries.push((home - part.homes.start, entry)));
    entries.sort_unstable_by_key(|(home, _)| *home);
    let level = u64::from(part.shape().level);
    let mut words = Vec::with_capacity(HEAD + groups / 4 + 1 + entries.len() + 2 * overflow.len());
    words.push(MAGIC << 32 | level << 24 | groups as u64);
    words.push(first);
    words.push((overflow.len() as u64) << 32 | entries.len() as u64);
    let start = words.len();
    words.resize(start + groups.div_ceil(4), 0);
    for (home, _) in &entries {
        let group = home / GROUP;
        if let Some(word) = words.get_mut(start + group / 4) {
            *word += 1 << (16 * (group % 4));
        }
    }
    words.extend(entries.iter().map(|(home, entry)| with_within(*entry, *home)));
    for (known, link) in overflow {
        words.extend([known.hash, link.to_bits() << 16 | u64::from(known.bits)]);
    }
    words
}

fn read(part: &[u8], found: &mut Vec<(Known, Link)>) -> Result<()> {
    let (words, rest) = part.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let head = words.next().zip(words.next()).zip(words.next());
    let Some(((head, first), counts)) = head else { return Err(bad("is too short")) };
    let level = u32::try_from(head >> 24 & 0xFF).unwrap_or(0);
    let groups = head & 0xFFFF;
    if head >> 32 != MAGIC || head & 0xFF_0000 != 0 || !rest.is_empty() {
        return Err(bad("has no valid head"));
    }
    if !(LEVEL_MIN..LEVEL_END).contains(&level) || first << level != 0 {
        return Err(bad("begins at no home"));
    }
    let position = first >> (64 - level);
    // The last group may begin anywhere: a table that was cleared meanwhile goes on with other homes.
    if (position + groups.saturating_sub(1) * GROUP as u64) >> level != 0 {
        return Err(bad("reaches past the last home"));
    }
    let (entries, overflow) = (counts & u64::from(u32::MAX), counts >> 32);
    let count_words: Vec<u64> =
        words.by_ref().take(usize::try_from(groups.div_ceil(4)).unwrap_or(0)).collect();
    let count = |group: u64| {
        let word = usize::try_from(group / 4).ok().and_then(|place| count_words.get(place));
        word.map_or(0, |word| word >> (16 * (group % 4)) & 0xFFFF)
    };
    if (0..groups).map(count).sum::<u64>() != entries
        || words.len() as u64 != entries + 2 * overflow
    {
        return Err(bad("has another length than it says"));
    }
    found.reserve(words.len());
    for group in 0..groups {
        for entry in words.by_ref().take(usize::try_from(count(group)).unwrap_or(0)) {
            let Some(tag) = Tag::of_entry(entry) else {
                return Err(bad("has an entry without tag"));
            };
            let home = position + group * GROUP as u64 + within_of(entry) as u64;
            if link_of(entry).grain() == 0 || entry == FREE || home >> level != 0 {
                return Err(bad("has an entry that points nowhere"));
            }
            found.push((tag.known(home, level), link_of(entry)));
        }
    }
    while let Some((hash, rest)) = words.next().zip(words.next()) {
        let bits = u32::try_from(rest & 0xFFFF).unwrap_or(0);
        let link = Link::in_entry(rest >> 16);
        if !(LEVEL_MIN..=64).contains(&bits) || hash.checked_shl(bits).unwrap_or(0) != 0 {
            return Err(bad("has an entry under an impossible hash"));
        }
        if link.grain() == 0 {
            return Err(bad("has an entry that points nowhere"));
        }
        found.push((Known { hash, bits }, link));
    }
    Ok(())
}

fn bad(what: &str) -> Error {
    Error::corrupted("import index", format!("a part of the index {what}"))
}
