//! The hopscotch directory of `depot` alone (uDepot §5.1): hashes and links, no records.
//!
//! No record is there that has the whole key, so a link carries 40 other bits of the key's hash in the place of a
//! record's address: they decide among the candidates that the index offers, as the record would.

use crate::failure::{Failure, Outcome};
use crate::numbers::real;
use crate::system::{Counters, Durability, OpenOptions, Session, System, SystemKind};
use esker_base::hash::KeyHasher;
use esker_index::{Directory, Link};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const KIND: SystemKind = SystemKind {
    name: "index",
    about: "depot's hopscotch index alone, in DRAM; no values",
    ordered: |_| false,
    fixed_capacity: false,
    persistent: false,
    promises: &Durability::ALL,
    keeps_values: false,
    value_size_max: 1 << 40,
    variants: &[],
    open,
};

/// Size that links carry, in grains.
const SIZE_GRAINS: u64 = 3;

#[derive(Clone)]
struct Index {
    directory: Arc<Directory>,
    hasher: Arc<KeyHasher>,
    writes: u64,
}

fn open(_: &OpenOptions) -> Outcome<Box<dyn System>> {
    Ok(Box::new(Index {
        directory: Arc::new(Directory::with_capacity(0)),
        hasher: Arc::new(KeyHasher::new(*b"esker bench keys")),
        writes: 0,
    }))
}

impl System for Index {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(self.clone()))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::from([("durability".to_owned(), "none: an index in DRAM".to_owned())])
    }

    fn counters(&self) -> Counters {
        let bytes = u64::try_from(self.directory.memory_bytes()).unwrap_or(0);
        Counters::from([
            ("index_bytes".to_owned(), real(bytes)),
            ("index_entries".to_owned(), real(self.directory.len())),
        ])
    }
}

/// What a link of this hash has in the place of an address.
fn place(hash: u64) -> u64 {
    (hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24) % (Link::GRAIN_END - 1) + 1
}

impl Index {
    fn find(&self, hash: u64) -> Option<Link> {
        self.directory.lookup(hash).iter().find(|link| link.grain() == place(hash))
    }

    /// A link that differs from the one before it.
    fn link(&mut self, hash: u64) -> Outcome<Link> {
        self.writes += 1;
        Link::record(place(hash), SIZE_GRAINS + self.writes % 2)
            .ok_or_else(|| Failure::new("no such link"))
    }
}

impl Session for Index {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        match self.find(self.hasher.hash(key)) {
            Some(link) => {
                see(&link.to_bits().to_be_bytes());
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn write(&mut self, key: &[u8], _: &[u8]) -> Outcome<()> {
        let hash = self.hasher.hash(key);
        let new = self.link(hash)?;
        match self.find(hash) {
            // Another client's write in between wins; either is right.
            Some(old) => drop(self.directory.replace(hash, old, new)),
            None => self.directory.insert(hash, new),
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        let hash = self.hasher.hash(key);
        if let Some(old) = self.find(hash) {
            self.directory.remove(hash, old);
        }
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Err(Failure::new("a hash index keeps no order"))
    }
}
