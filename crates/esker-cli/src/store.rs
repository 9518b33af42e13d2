//! Opening the store of a command.

use crate::arguments::{Data, Memory, New};
use crate::config::{DEFAULT_DATA, parse_engine, parse_size};
use crate::failure::Failure;
use crate::progress::{LINE_FIRST, LINE_REST, progress, told};
use crate::service::{AskedOfNew, say};
use esker::options::Progress;
use esker::{ErrorKind, Options, Store};
use esker_base::units::format_size_bytes;
use indicatif::ProgressBar;
use std::io::{IsTerminal, Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
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

/// Refuses a size that devices or files which are there cannot have; nothing is known of what is made yet.
pub(crate) fn fits(paths: &[PathBuf], size_bytes: u64) -> Result<(), Failure> {
    let each = size_bytes / paths.len().max(1) as u64;
    for path in paths {
        let Ok(found) = std::fs::metadata(path) else { continue };
        if found.is_dir() {
            continue;
        }
        #[expect(clippy::disallowed_methods, reason = "only its size is asked for")]
        let end = std::fs::File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
        let has = end.map_err(|source| Failure::io(path.display(), &source))?;
        if has < each {
            return Err(Failure::usage(format!(
                "{} has {}, which is less than the size that was asked for",
                path.display(),
                format_size_bytes(has)
            )));
        }
    }
    Ok(())
}

/// Refuses all but one raw device.
pub(crate) fn raw_device(paths: &[PathBuf]) -> Result<(), Failure> {
    let is_raw = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
    };
    match paths {
        [path] if is_raw(path) => Ok(()),
        _ => Err(Failure::usage("format: only one raw device is made a store whatever it holds")),
    }
}

/// Opens the store that is there.
pub(crate) fn open(data: &Data) -> Result<Store, Failure> {
    let mut options = options_at(&data.paths);
    options.create = false;
    open_as_made(options)
}

/// Opens the store that is there to read it: nothing of it is changed, and others may read it, too.
pub(crate) fn open_to_read(data: &Data) -> Result<Store, Failure> {
    let mut options = options_at(&data.paths);
    options.read_only = true;
    Ok(open_with(&mut options)?)
}

/// Options of a store that is created if there is none.
pub(crate) fn new_options(data: &Data, memory: &Memory) -> Options {
    let mut options = options_at(&data.paths);
    options.pmem_emulate = memory.pmem_emulate;
    options
}

/// As [`new_options`], with what a command says of a new store.
pub(crate) fn options_of(data: &Data, new: &New) -> Result<Options, Failure> {
    let mut options = new_options(data, &new.memory);
    if let Some(text) = &new.size {
        options.size_bytes = size_of(text)?;
        fits(&data.paths, options.size_bytes)?;
    }
    if let Some(text) = &new.engine {
        options.engine =
            parse_engine(text).map_err(|words| Failure::usage(format!("--engine: {words}")))?;
    }
    Ok(options)
}

/// Opens the store that a command writes to, or makes it; of one that is there, it is said that it keeps its size.
pub(crate) fn open_or_make(options: Options, new: &New) -> Result<Store, Failure> {
    let paths = std::iter::once(&options.path).chain(&options.devices);
    let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    let (size_bytes, was_there) = (options.size_bytes, options.engine_there().is_some());
    let store = open_as_made(options)?;
    if was_there {
        let size = new.size.as_ref().map(|size| format!("--size {size}"));
        let asked = AskedOfNew { size, no_cache: None };
        for line in asked.unmet(&store.stats(), size_bytes, &paths.join(", ")) {
            say(&line);
        }
    }
    Ok(store)
}

/// The bytes that `--size` says.
pub(crate) fn size_of(text: &str) -> Result<u64, Failure> {
    parse_size(text).map_err(|words| Failure::usage(format!("--size: {words}")))
}

/// Progress that is shown on `bar`.
pub(crate) fn shown_on(bar: &ProgressBar) -> Progress {
    let shown = bar.clone();
    Progress::new(move |done, all| {
        shown.set_length(all);
        shown.set_position(done);
    })
}

/// As [`open_with`]; a store that lies in memory which a power cut empties is opened, too: whoever made it asked for that, and no
/// command takes it for more than it is.
pub(crate) fn open_as_made(mut options: Options) -> Result<Store, Failure> {
    let is_there = options.engine_there().is_some();
    match open_with(&mut options) {
        Err(error) if is_there && error.kind() == ErrorKind::Unsupported => {
            options.pmem_emulate = true;
            Ok(open_with(&mut options)?)
        }
        opened => Ok(opened?),
    }
}

/// Opens a store for a server: how far that is, is shown on a terminal, or else said in lines.
pub(crate) fn open_served(options: &mut Options) -> esker::Result<Store> {
    if std::io::stderr().is_terminal() {
        return open_with(options);
    }
    told("opening the store", (LINE_FIRST, LINE_REST), say, |progress| {
        options.progress = progress;
        Store::open(options)
    })
}

/// Opens a store and shows how far recovery is.
pub(crate) fn open_with(options: &mut Options) -> esker::Result<Store> {
    let bar = progress("recovering", 0);
    options.progress = shown_on(&bar);
    let store = Store::open(options);
    bar.finish_and_clear();
    store
}
