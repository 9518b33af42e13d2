//! Opening the store of a command.

use crate::arguments::{Data, Size};
use crate::config::parse_size;
use crate::failure::Failure;
use crate::progress::progress;
use esker::options::Progress;
use esker::{Options, Store};
use indicatif::ProgressBar;

/// Opens the store that is there.
pub(crate) fn open(data: &Data) -> Result<Store, Failure> {
    let mut options = Options::new(&data.path);
    options.create = false;
    open_with(options)
}

/// Options of a store that is created if there is none.
pub(crate) fn new_options(data: &Data, size: &Size) -> Result<Options, Failure> {
    let mut options = Options::new(&data.path);
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
