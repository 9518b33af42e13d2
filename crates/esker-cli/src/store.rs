//! Opening the store of a command.

use crate::arguments::{Data, Size};
use crate::config::{DEFAULT_DATA, parse_size};
use crate::failure::Failure;
use crate::progress::progress;
use esker::options::Progress;
use esker::{Options, Store};
use indicatif::ProgressBar;
use std::path::PathBuf;

/// Options of the store at `paths`: the first is its path, further ones are striped with it.
pub(crate) fn options_at(paths: &[PathBuf]) -> Options {
    let (first, others) = match paths.split_first() {
        Some((first, others)) => (first.clone(), others.to_vec()),
        None => (PathBuf::from(DEFAULT_DATA), Vec::new()),
    };
    let mut options = Options::new(first);
    options.devices = others;
    options
}

/// Opens the store that is there.
pub(crate) fn open(data: &Data) -> Result<Store, Failure> {
    let mut options = options_at(&data.paths);
    options.create = false;
    // Whoever made it asked for that, and no command takes it for more than it is.
    options.pmem_emulate = true;
    open_with(options)
}

/// Options of a store that is created if there is none.
pub(crate) fn new_options(data: &Data, size: &Size) -> Result<Options, Failure> {
    let mut options = options_at(&data.paths);
    if let Some(text) = &size.text {
        options.size_bytes =
            parse_size(text).map_err(|words| Failure::usage(format!("--size: {words}")))?;
    }
    Ok(options)
}

/// Progress that is shown on `bar`.
pub(crate) fn shown_on(bar: &ProgressBar) -> Progress {
    let shown = bar.clone();
    Progress::new(move |done, all| {
        shown.set_length(all);
        shown.set_position(done);
    })
}

/// Opens a store and shows how far recovery is.
pub(crate) fn open_with(mut options: Options) -> Result<Store, Failure> {
    let bar = progress("recovering", 0);
    options.progress = shown_on(&bar);
    let store = Store::open(&options);
    bar.finish_and_clear();
    Ok(store?)
}
