//! What can be measured: a store behind one small interface.
//!
//! A new engine or peer is one [`SystemKind`] in a list; nothing else knows its name.
//!
//! # Rules for those who implement it
//! - The same promise for the same [`Durability`], the same bytes of cache, and every choice beyond that in
//!   [`System::options`], which stands in the results.
//! - A value that is read is handed over as bytes; the caller copies it, whoever owns it.
//! - What a system cannot do it says in [`SystemKind`]; it never does something weaker in silence.

use crate::failure::{Failure, Outcome};
use esker_trt::Runtime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// What an acknowledgement promises, as in `esker::Durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Acknowledged means: survives power loss.
    Sync,
    /// At most the last second is lost.
    Periodic,
    /// Nothing until `sync` or a clean stop.
    None,
}

impl Durability {
    /// Every promise.
    pub const ALL: [Durability; 3] = [Durability::Sync, Durability::Periodic, Durability::None];
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Durability::Sync => "sync",
            Durability::Periodic => "periodic",
            Durability::None => "none",
        })
    }
}

impl FromStr for Durability {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Durability::ALL
            .into_iter()
            .find(|durability| durability.to_string() == text)
            .ok_or_else(|| Failure::new(format!("{text:?} is none of sync, periodic, none")))
    }
}

/// How a system is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Folder of its own. Empty at the first open.
    pub folder: PathBuf,
    /// What is promised.
    pub durability: Durability,
    /// Memory for what is cached and buffered, in bytes.
    pub cache_bytes: u64,
    /// Records there will be, for those that want to know.
    pub records: u64,
    /// Bytes of all records, keys and values alone.
    pub data_bytes: u64,
    /// Share of the capacity that live data are to take, for systems whose capacity is fixed.
    pub utilization: Option<f64>,
    /// Average size of a key and of a value, in bytes.
    pub record_size_bytes: (u64, u64),
    /// Threads that clients run on.
    pub threads: usize,
    /// Clients of each thread.
    pub depth: usize,
    /// Whether the page cache is to be bypassed by those that can.
    pub direct: bool,
    /// What stands after the colon of a system's name.
    pub variant: Option<String>,
}

/// Numbers that a system counts itself, by name. Those that end in `_total` are summed from the open on: a
/// row has what its phase added to them.
pub type Counters = BTreeMap<String, f64>;

/// A client's way to a system.
pub trait Session: Send {
    /// Gives the value of `key` to `see`; says whether there is one.
    ///
    /// # Errors
    /// The system's.
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool>;

    /// Puts `value` under `key`, whether it has one or not.
    ///
    /// # Errors
    /// The system's.
    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()>;

    /// Deletes `key`, whether it has a value or not.
    ///
    /// # Errors
    /// The system's.
    fn delete(&mut self, key: &[u8]) -> Outcome<()>;

    /// Gives up to `count` records from `start` on, in the order of their keys, to `see`; says how many.
    ///
    /// # Errors
    /// The system's; all systems that are not [`SystemKind::ordered`].
    fn scan(&mut self, start: &[u8], count: u64, see: &mut dyn FnMut(&[u8], &[u8]))
    -> Outcome<u64>;
}

/// A system that is open.
pub trait System: Send + Sync {
    /// A client.
    ///
    /// # Errors
    /// The system's.
    fn session(&self) -> Outcome<Box<dyn Session>>;

    /// Makes everything durable that was acknowledged.
    ///
    /// # Errors
    /// The system's.
    fn sync(&self) -> Outcome<()>;

    /// Syncs and closes. Sessions are gone by then.
    ///
    /// # Errors
    /// The system's.
    fn close(self: Box<Self>) -> Outcome<()>;

    /// The run-time whose tasks are to be the clients; threads if `None`.
    fn runtime(&self) -> Option<Arc<Runtime>> {
        None
    }

    /// How it is set up, in its own words.
    fn options(&self) -> BTreeMap<String, String>;

    /// What it counts.
    fn counters(&self) -> Counters {
        Counters::new()
    }
}

type Open = fn(&OpenOptions) -> Outcome<Box<dyn System>>;

/// A kind of system.
#[derive(Clone, Debug)]
pub struct SystemKind {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Whether it keeps keys in order, with this variant.
    pub ordered: fn(Option<&str>) -> bool,
    /// Has a capacity that `utilization` can set.
    pub fixed_capacity: bool,
    /// Keeps data when it is closed.
    pub persistent: bool,
    /// What it can promise. Those that keep nothing at all are listed with everything: they are floors, and say in
    /// their options that they promise nothing.
    pub promises: &'static [Durability],
    /// Gives back what was put; a bare index does not.
    pub keeps_values: bool,
    /// Values that it takes, at most, in bytes.
    pub value_size_max: u64,
    /// What may stand after a colon.
    pub variants: &'static [&'static str],
    /// Opens it, and makes it if its folder is empty.
    pub open: Open,
}

/// The systems of a build.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    kinds: Vec<SystemKind>,
}

impl Registry {
    /// Those of this crate.
    #[must_use]
    pub fn new() -> Self {
        Registry { kinds: crate::systems::all() }
    }

    /// Adds more.
    #[must_use]
    pub fn with(mut self, kinds: Vec<SystemKind>) -> Self {
        self.kinds.extend(kinds);
        self
    }

    /// All.
    #[must_use]
    pub fn kinds(&self) -> &[SystemKind] {
        &self.kinds
    }

    /// The system of a name such as `depot` or `depot:aio`, and its variant.
    ///
    /// # Errors
    /// Names that are not in this build.
    pub fn find(&self, name: &str) -> Outcome<(&SystemKind, Option<String>)> {
        let (base, variant) = match name.split_once(':') {
            Some((base, variant)) => (base, Some(variant)),
            None => (name, None),
        };
        let Some(kind) = self.kinds.iter().find(|kind| kind.name == base) else {
            let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name).collect();
            return Err(Failure::new(format!(
                "{name}: not in this build, which has {}",
                names.join(", ")
            )));
        };
        match variant {
            Some(variant) if !kind.variants.contains(&variant) => Err(Failure::new(format!(
                "{name}: not in this build, which has {base} and {}",
                kind.variants.join(", ")
            ))),
            variant => Ok((kind, variant.map(str::to_owned))),
        }
    }
}
