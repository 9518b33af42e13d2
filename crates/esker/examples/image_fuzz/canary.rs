//! Faults that are planted, each of which the fuzzer has to find: else it proves nothing.
//!
//! Decoders that trust a number of the image, one for each way to be wrong, stand beside the stores; and of the stores' own
//! comparisons of checksums, which keep wrong data away, one after another is turned off.

use crate::media::Subject;
use crate::run;
use crate::watch;
use esker_base::Site;
use esker_base::site::switch;
use parking_lot::Mutex;
use std::time::Duration;

/// Groups of seeds in which a fault has to be found.
const GROUPS: u64 = 24;
/// Longest time that a run may take here.
const LONGEST: Duration = Duration::from_secs(1);
/// Where the number stands in each unit.
const OFFSET: usize = 16;
const UNIT: usize = 512;

/// What a planted decoder does with a number of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canary {
    /// Takes it for an index that is in a table.
    Index,
    /// Takes so much memory.
    Size,
    /// Goes on by so much.
    Step,
}

static PLANTED: Mutex<Option<Canary>> = Mutex::new(None);

/// Comparisons without which wrong data come through.
const CHECKS: [(Subject, Site); 2] = [
    (Subject::Depot, esker::sites::depot::RECORD_CHECKSUM),
    (Subject::FlatCceh, esker::sites::flat::RECORD_CHECKSUM),
];

/// The decoder that is planted, if one is: of a changed image, and of the one that it was.
pub(crate) fn decode(changed: &[Vec<u8>], base: &[Vec<u8>]) {
    let Some(planted) = *PLANTED.lock() else { return };
    let numbers = changed.iter().zip(base).flat_map(|(changed, base)| {
        changed.chunks(UNIT).zip(base.chunks(UNIT)).filter_map(|(one, other)| {
            let number = |unit: &[u8]| unit.get(OFFSET..)?.first_chunk().copied();
            Some((u32::from_le_bytes(number(one)?), u32::from_le_bytes(number(other)?)))
        })
    });
    for (number, base) in numbers {
        match planted {
            Canary::Index => {
                std::hint::black_box([0_u8][usize::from(number > base)]);
            }
            Canary::Size => {
                let size = number.saturating_sub(base).min(1 << 28);
                drop(std::hint::black_box(Vec::<u8>::with_capacity(size as usize)));
            }
            Canary::Step if number == 0 && base != 0 => while !watch::is_late() {},
            Canary::Step => {}
        }
    }
}

/// Plants one after another; whether each was found.
pub(crate) fn all() -> bool {
    let mut all_found = true;
    let mut plant = |name: &str, subject: Subject, words: &str, strict: bool| {
        // Those in which checksums count are the last of four.
        let mut groups = (0..GROUPS).filter(|group| !strict || group % 4 == 3);
        let found = groups.find_map(|group| run::whole_group(subject, group).find(words));
        all_found &= found.is_some();
        let words = found.unwrap_or_else(|| "MISSED".to_owned());
        println!("planted {name} in {}: {words}", subject.name());
    };
    for (canary, words) in
        [(Canary::Index, "panic at"), (Canary::Size, "more memory"), (Canary::Step, "does not end")]
    {
        *PLANTED.lock() = Some(canary);
        let name = format!("{canary:?}");
        watch::over(LONGEST, true, || plant(&name, Subject::Depot, words, false));
    }
    *PLANTED.lock() = None;
    for (subject, site) in CHECKS {
        switch::disable(Some(site));
        plant(site.name(), subject, "never", true);
    }
    switch::disable(None);
    all_found
}
