//! Anchors in order, and which of them is the last that a key does not come before.
#![allow(clippy::indexing_slicing, reason = "as for the index")]

use std::ops::Range;

/// Anchors in order. The first one is never looked at: who asks knows that it is not behind the key. A search looks at eight
/// bytes of each, behind what all the others share, which lie side by side.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    all: Vec<Box<[u8]>>,
    heads: Vec<u64>,
    /// Bytes that all but the first one begin with.
    shared: usize,
}

/// Eight bytes of a key from `start` on, as a number in the same order.
#[inline]
fn head_of(key: &[u8], start: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = key.get(start..).unwrap_or_default();
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

impl Anchors {
    pub(super) fn new(all: Vec<Box<[u8]>>) -> Self {
        let mut anchors = Anchors { all, heads: Vec::new(), shared: 0 };
        anchors.index();
        anchors
    }

    /// Bytes that all but the first one begin with.
    fn shared_now(&self) -> usize {
        match (self.all.get(1), self.all.last()) {
            (Some(a), Some(b)) => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
            _ => 0,
        }
    }

    /// Finds out what they share, and their heads behind it.
    fn index(&mut self) {
        let shared = self.shared_now();
        self.shared = shared;
        self.heads = self.all.iter().map(|anchor| head_of(anchor, shared)).collect();
    }

    pub(super) fn get(&self, number: usize) -> Option<&[u8]> {
        self.all.get(number).map(|anchor| &**anchor)
    }

    /// How many are `key` or before it; with `below`, before it. At least one.
    #[inline]
    fn count_until(&self, key: &[u8], below: bool) -> usize {
        let Some(second) = self.all.get(1) else { return 1 };
        let shared = &second[..self.shared];
        let beginning = key.get(..self.shared).unwrap_or(key);
        if beginning != shared {
            return if beginning < shared { 1 } else { self.all.len() };
        }
        let head = head_of(key, self.shared);
        let heads = &self.heads[1..];
        let before = 1 + heads.partition_point(|other| *other < head);
        let until = before + heads[before - 1..].partition_point(|other| *other == head);
        let equal = &self.all[before..until];
        before
            + equal.partition_point(|anchor| if below { **anchor < *key } else { **anchor <= *key })
    }

    /// The last one that is `key` or before it; with `below`, before it.
    #[inline]
    pub(super) fn last_until(&self, key: &[u8], below: bool) -> usize {
        self.count_until(key, below) - 1
    }

    /// Replaces some.
    pub(super) fn splice(&mut self, those: Range<usize>, by: Vec<Box<[u8]>>) {
        let shared = self.shared;
        let heads = by.iter().map(|anchor| head_of(anchor, shared));
        self.heads.splice(those.clone(), heads);
        self.all.splice(those, by);
        if self.shared_now() != shared {
            self.index();
        }
    }

    /// Takes those from `number` on out.
    pub(super) fn split_off(&mut self, number: usize) -> Self {
        let rest = self.all.split_off(number);
        self.index();
        Anchors::new(rest)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        let bytes: usize = self.all.iter().map(|anchor| anchor.len() + 16).sum();
        (self.all.capacity() * size_of::<Box<[u8]>>() + self.heads.capacity() * 8 + bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_base::rng::Rng;

    #[test]
    fn a_search_agrees_with_a_walk_whatever_the_anchors_share() {
        let mut rng = Rng::from_seed(5);
        for round in 0..200 {
            let shared = vec![b'a'; rng.index(12)];
            let key = |rng: &mut Rng| -> Vec<u8> {
                let own = (0..rng.index(10)).map(|_| u8::try_from(rng.below(3)).unwrap() * 127);
                shared.iter().copied().chain(own.collect::<Vec<_>>()).collect()
            };
            let mut model: Vec<Vec<u8>> = (0..=rng.index(60)).map(|_| key(&mut rng)).collect();
            model.push(Vec::new());
            model.sort();
            model.dedup();
            let boxed = |all: &[Vec<u8>]| all.iter().map(|anchor| anchor.clone().into()).collect();
            let mut anchors = Anchors::new(boxed(&model));
            for _ in 0..20 {
                let number = rng.index(model.len());
                let mut between: Vec<Vec<u8>> = (0..rng.index(5)).map(|_| key(&mut rng)).collect();
                between.retain(|anchor| {
                    *anchor > model[number]
                        && model.get(number + 1).is_none_or(|next| anchor < next)
                });
                between.sort();
                between.dedup();
                anchors.splice(number + 1..number + 1, boxed(&between));
                model.splice(number + 1..number + 1, between);
                if rng.chance(1, 4) {
                    let gone = 1 + rng.index(model.len());
                    let end = (gone + rng.index(4)).min(model.len());
                    anchors.splice(gone..end, Vec::new());
                    model.drain(gone..end);
                }
                for _ in 0..20 {
                    let key = if rng.chance(1, 2) {
                        key(&mut rng)
                    } else {
                        model[rng.index(model.len())].clone()
                    };
                    let until = model.iter().filter(|anchor| **anchor <= key).count();
                    assert_eq!(anchors.last_until(&key, false), until - 1, "round {round}");
                    let below = model.iter().filter(|anchor| **anchor < key).count();
                    assert_eq!(anchors.last_until(&key, true), below.max(1) - 1, "round {round}");
                }
            }
            let middle = rng.index(model.len());
            let rest = anchors.split_off(middle);
            for (number, anchor) in model.iter().enumerate() {
                let found =
                    if number < middle { anchors.get(number) } else { rest.get(number - middle) };
                assert_eq!(found, Some(&**anchor));
                if number > middle {
                    assert_eq!(rest.last_until(anchor, false), number - middle);
                } else if number < middle {
                    assert_eq!(anchors.last_until(anchor, false), number);
                }
            }
        }
    }
}
