//! `flat:cceh` and `flat:masstree`: small entries in logs on persistent memory, or on memory that stands in for it. Clients are
//! threads; with a batching model behind the index (`flat:cceh:vertical`) tasks of the run-time, as many cores as `threads` says, so
//! that models can be compared in one run (FlatStore Figure 4).

use super::opened::Opened;
use crate::failure::Outcome;
use crate::numbers::{real, whole};
use crate::system::{Durability, OpenOptions, System, SystemKind};
use esker::{EngineKind, ErrorKind, Options, Store};
use esker_trt::{Config, Runtime};
use std::sync::Arc;

pub(super) const KIND: SystemKind = SystemKind {
    name: "flat",
    about: "Esker's log of small entries on persistent memory, with a hash index or an ordered one",
    ordered: |variant| variant.is_some_and(|variant| variant.starts_with("masstree")),
    fixed_capacity: true,
    persistent: true,
    promises: &Durability::ALL,
    keeps_values: true,
    value_size_max: 4 << 30,
    variants: &[
        "cceh",
        "masstree",
        "cceh:none",
        "cceh:vertical",
        "cceh:naive-horizontal",
        "cceh:pipelined-horizontal",
        "masstree:none",
        "masstree:vertical",
        "masstree:naive-horizontal",
        "masstree:pipelined-horizontal",
    ],
    open,
};

/// Bytes of an entry beside key and value, its share of a batch's padding included.
const RECORD_BYTES: f64 = 64.0;
/// Smallest store that is made, in bytes.
const SIZE_MIN_BYTES: u64 = 128 << 20;
/// How much larger a store is than its data if nothing else is said.
const SPARE: f64 = 3.0;

fn open(options: &OpenOptions) -> Outcome<Box<dyn System>> {
    let mut store = Options::new(&options.folder);
    let variant = options.variant.as_deref().unwrap_or("cceh");
    let (index, model) = match variant.split_once(':') {
        Some((index, model)) => (index, Some(model)),
        None => (variant, None),
    };
    store.engine = Some(match index {
        "masstree" => EngineKind::FlatMasstree,
        _ => EngineKind::FlatCceh,
    });
    let mut runtime = None;
    if let Some(model) = model {
        store.batching = model.parse()?;
        let config = Config { cores: options.threads, ..Config::default() };
        runtime = Some(Arc::new(Runtime::start(config)?));
    }
    // Where nothing is promised, a file may stand in for persistent memory.
    store.pmem_emulate = options.durability == Durability::None;
    let live = real(options.data_bytes) + real(options.records) * RECORD_BYTES;
    let share = options.utilization.map_or(1.0 / SPARE, |share| share.clamp(0.01, 0.95));
    store.size_bytes = whole(live / share).max(SIZE_MIN_BYTES).next_multiple_of(4 << 20);
    let opened = match Store::open(&store) {
        Err(error) if error.kind() == ErrorKind::Unsupported && !store.pmem_emulate => {
            store.pmem_emulate = true;
            Store::open(&store)?
        }
        opened => opened?,
    };
    let promise = match (options.durability, store.pmem_emulate) {
        (Durability::None, _) => {
            "none: emulated, unless the medium is persistent memory".to_owned()
        }
        (_, true) => "none: emulated, this is main memory".to_owned(),
        (asked, false) => format!("{asked}: sync all the same"),
    };
    let said = [
        ("durability", promise),
        ("size_bytes", store.size_bytes.to_string()),
        ("batching", store.batching.to_string()),
        ("value cache", "none: the cache bytes are not used".to_owned()),
    ];
    Ok(Opened::new(opened, runtime, said))
}
