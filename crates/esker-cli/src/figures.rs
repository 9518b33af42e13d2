//! `esker stat`: figures of a store, in words or as JSON.

use crate::arguments::{Data, Servers};
use crate::failure::{Done, Failure};
use crate::output::output_failed;
use crate::store::open_to_read;
use esker::EngineKind;
use esker_base::units::format_size_bytes;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Figures {
    /// None: nobody knows.
    items: Option<u64>,
    /// Whether there are not fewer.
    items_are_exact: bool,
    tombstones: u64,
    live_bytes: u64,
    capacity_bytes: u64,
    segments: u64,
    free_segments: u64,
    index_entries: u64,
    index_capacity: u64,
    last_version: u64,
    read_only: Option<String>,
    device: String,
}

/// `esker stat`.
pub(crate) fn stat(data: &Data, servers: &Servers, json: bool) -> Result<Done, Failure> {
    if !servers.urls.is_empty() {
        return crate::remote::stat(servers, json);
    }
    let store = open_to_read(data)?;
    let stats = store.stats();
    let figures = Figures {
        items: (!stats.has_more_items).then_some(stats.items),
        // It does not look at what a write replaces.
        items_are_exact: !stats.has_more_items && store.engine() != EngineKind::Flex,
        tombstones: stats.tombstones,
        live_bytes: stats.live_bytes,
        capacity_bytes: stats.capacity_bytes,
        segments: stats.segments,
        free_segments: stats.free_segments,
        index_entries: stats.index_entries,
        index_capacity: stats.index_capacity,
        last_version: stats.last_version.0,
        read_only: stats.read_only.clone(),
        device: store.report(),
    };
    let text = if json {
        serde_json::to_string(&figures)
            .map_err(|error| Failure::broken(format!("write JSON: {error}")))?
    } else {
        words(&figures)
    };
    let mut output = std::io::stdout().lock();
    let written = writeln!(output, "{text}").map_err(output_failed);
    store.close()?;
    written.map(|()| Done::Yes)
}

fn words(figures: &Figures) -> String {
    let mut lines = vec![
        format!("data       {}", figures.device),
        match figures.items {
            Some(items) if figures.items_are_exact => format!("items      {items}"),
            Some(items) => format!("items      up to {items}"),
            None => "items      not counted since the store was restored, or not closed".to_owned(),
        },
        format!("tombstones {}", figures.tombstones),
        format!(
            "live       {} of {}",
            format_size_bytes(figures.live_bytes),
            format_size_bytes(figures.capacity_bytes)
        ),
        format!("segments   {} free of {}", figures.free_segments, figures.segments),
        format!("index      {} of {} entries", figures.index_entries, figures.index_capacity),
        format!("version    {}", figures.last_version),
    ];
    if let Some(why) = &figures.read_only {
        lines.push(format!("read-only  {why}"));
    }
    lines.join("\n")
}
