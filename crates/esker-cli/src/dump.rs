//! `esker dump` and `esker load`: all items as JSON lines.
//!
//! # Layout
//! ```text
//! {"format":"esker-dump","version":1}
//! {"key":"text","value":"text","flags":7,"expires_at":1767225600}
//! {"key_base64":"/w==","value_base64":"AAE="}
//! {"items":2}
//! ```
//! First a line that says what it is; one line an item, keys and values as text where they are
//! valid UTF-8 and in Base64 (RFC 4648, padded) where not; `flags` and `expires_at` (seconds since
//! 1970) only where they are not zero and not missing; last the number of items, so that a dump
//! that was cut short is noticed, and nothing behind that: of two dumps in one file the second would be lost in silence.
//! Items are in no order.
//!
//! # Failure
//! A dump that fails leaves the file that was there before: a new one takes its name once it is whole and durable. It fails at
//! the first item that cannot be read; with `--skip-damaged` it lacks those, and says how often.
//! A line that is none of these stops the load, which says its number, and how many items of the lines before
//! it are stored. Loading is idempotent: do it again with the whole dump.

use crate::arguments::{Data, New};
use crate::failure::{Done, Failure};
use crate::progress::progress;
use crate::service::say;
use crate::store::{open_or_make, open_to_read, options_of};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use esker::media::unfinished;
use esker::{Attributes, Condition, Durability, ErrorKind, PutOptions, Store};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The format in short, for `--help`.
pub(crate) const FORMAT_HELP: &str = "\
Format: one JSON object a line.
  {\"format\":\"esker-dump\",\"version\":1}             first
  {\"key\":K,\"value\":V,\"flags\":N,\"expires_at\":SECONDS}  an item; flags and expires_at may be missing
  {\"items\":N}                                     last
Keys and values that are not UTF-8 are in Base64, as key_base64 and value_base64.";

const FORMAT: &str = "esker-dump";
const VERSION: u32 = 1;
/// More than the first line has, in bytes.
const HEADER_SIZE_MAX: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trailer {
    items: u64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    state: u8,
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// Text if it is that, else Base64.
fn encode(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(BASE64.encode(bytes))),
    }
}

fn decode(what: &str, text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, String> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => {
            BASE64.decode(base64).map_err(|error| format!("{what}_base64: {error}"))
        }
        (None, None) => Err(format!("no {what}")),
        (Some(_), Some(_)) => Err(format!("{what} and {what}_base64 in one item")),
    }
}

impl Item {
    fn new(key: &[u8], value: &[u8], attributes: Attributes) -> Item {
        let (key, key_base64) = encode(key);
        let (value, value_base64) = encode(value);
        let Attributes { flags, expires_at, state } = attributes;
        Item { key, key_base64, value, value_base64, flags, expires_at, state }
    }

    fn parts(self) -> Result<(Vec<u8>, Vec<u8>, Attributes), String> {
        let key = decode("key", self.key, self.key_base64)?;
        let value = decode("value", self.value, self.value_base64)?;
        Ok((
            key,
            value,
            Attributes { flags: self.flags, expires_at: self.expires_at, state: self.state },
        ))
    }
}

/// The line of an item.
pub(crate) fn line_of(
    key: &[u8],
    value: &[u8],
    attributes: Attributes,
) -> serde_json::Result<String> {
    serde_json::to_string(&Item::new(key, value, attributes))
}

/// The file that a dump goes to.
struct Target {
    file: File,
    /// The name it has until it is whole, and then; none if it is a pipe or a device, which is written where it is.
    names: Option<(PathBuf, PathBuf)>,
}

impl Target {
    fn create(path: &Path) -> Result<Target, Failure> {
        // What a symbolic link names is replaced, not the link.
        let path = unfinished::replaced(path);
        let failed = |at: &Path, source: std::io::Error| Failure::io(at.display(), &source);
        match std::fs::metadata(&path) {
            Ok(found) if found.file_type().is_block_device() => {
                let words = format!("{} is a disk, and a dump goes to a file", path.display());
                return Err(Failure::usage(words));
            }
            Ok(found) if !found.is_file() => return Target::as_it_is(&path),
            _ => {}
        }
        let Some(until) = unfinished::unfinished_name(&path) else {
            return Target::as_it_is(&path);
        };
        check_replaced(&path)?;
        match unfinished::create_unfinished(&until) {
            Ok(Some(fd)) => Ok(Target { file: fd.into(), names: Some((until, path)) }),
            Ok(None) => {
                let words = "another dump writes to this file";
                Err(failed(&until, std::io::Error::other(words)))
            }
            Err(errno) => Err(failed(&until, errno.into())),
        }
    }

    /// A pipe or a device.
    fn as_it_is(path: &Path) -> Result<Target, Failure> {
        #[expect(clippy::disallowed_methods, reason = "a dump is the program's own file")]
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(|source| Failure::io(path.display(), &source))?;
        Ok(Target { file, names: None })
    }

    /// Gives the file its name.
    fn finish(mut self) -> std::io::Result<()> {
        if let Some((until, path)) = &self.names {
            self.file.sync_all()?;
            std::fs::rename(until, path)?;
            sync_folder_of(path)?;
        }
        self.names = None;
        Ok(())
    }
}

/// Refuses a file that a dump is not to take the place of: one that is none. It may be a store's.
fn check_replaced(path: &Path) -> Result<(), Failure> {
    let start = format!("{{\"format\":\"{FORMAT}\"");
    let mut found = Vec::new();
    #[expect(clippy::disallowed_methods, reason = "a dump is the program's own file")]
    let opened = File::open(path);
    let read = opened.and_then(|file| file.take(start.len() as u64).read_to_end(&mut found));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(path.display(), &error)),
        Ok(_) if found.is_empty() || found == start.as_bytes() => Ok(()),
        Ok(_) => {
            let words = "is no dump: it stays, and a dump needs another name";
            Err(Failure::usage(format!("{} {words}", path.display())))
        }
    }
}

/// Makes the name of a file durable, where the folder can be opened for that: who may write there need not be one who may
/// read.
fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(folder.unwrap_or(Path::new(".")), flags, Mode::empty()) {
        Ok(folder) => Ok(rustix::fs::fsync(folder)?),
        Err(Errno::ACCESS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some((until, _)) = &self.names {
            // Where that fails, too, it stays under a name that says what it is.
            let _ = std::fs::remove_file(until);
        }
    }
}

/// The file that is named; none if that is standard output, or input.
fn named(file: Option<&Path>) -> Option<&Path> {
    file.filter(|path| *path != Path::new("-"))
}

/// `esker dump`.
pub(crate) fn dump(data: &Data, skip_damaged: bool, file: Option<&Path>) -> Result<Done, Failure> {
    let file = named(file);
    let store = open_to_read(data)?;
    let name = file.map_or_else(|| "standard output".into(), |path| path.display().to_string());
    let failed = |source: std::io::Error| Failure::io(&name, &source);
    let target = file.map(Target::create).transpose()?;
    let output: Box<dyn Write + '_> = match &target {
        Some(target) => Box::new(&target.file),
        None => Box::new(std::io::stdout().lock()),
    };
    let mut output = BufWriter::with_capacity(1 << 20, output);
    let mut write = |line: serde_json::Result<String>| {
        let line = line.map_err(std::io::Error::from).map_err(failed)?;
        writeln!(output, "{line}").map_err(failed)
    };
    write(serde_json::to_string(&Header { format: FORMAT.into(), version: VERSION }))?;
    let bar = progress("dumping", store.stats().items);
    let (mut items, mut damaged) = (0, 0);
    for item in store.iter() {
        let (key, value) = match item {
            Err(error) if skip_damaged && is_damage(&error) => {
                bar.suspend(|| say(&format!("esker: {error}")));
                damaged += 1;
                continue;
            }
            item => item?,
        };
        write(line_of(&key, &value, value.attributes()))?;
        items += 1;
        bar.inc(1);
    }
    write(serde_json::to_string(&Trailer { items }))?;
    bar.finish_and_clear();
    output.flush().map_err(failed)?;
    drop(output);
    if let Some(target) = target {
        target.finish().map_err(failed)?;
    }
    store.close()?;
    say(&format!("{items} items dumped"));
    if damaged > 0 {
        say(&format!("{damaged} places could not be read: what stands there is not in the dump"));
        return Ok(Done::No);
    }
    Ok(Done::Yes)
}

/// Whether an item cannot be read, and others may be.
fn is_damage(error: &esker::Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupted | ErrorKind::Io)
}

/// `esker load`.
pub(crate) fn load(data: &Data, new: &New, file: Option<&Path>) -> Result<Done, Failure> {
    let file = named(file);
    let name = file.map_or_else(|| "standard input".into(), |path| path.display().to_string());
    let failed = |source: std::io::Error| Failure::io(&name, &source);
    let input: Box<dyn BufRead> = match file {
        Some(path) => {
            #[expect(clippy::disallowed_methods, reason = "a dump is the program's own file")]
            let file = File::open(path).map_err(failed)?;
            Box::new(BufReader::with_capacity(1 << 20, file))
        }
        None => Box::new(std::io::stdin().lock()),
    };
    let mut options = options_of(data, new)?;
    // Nothing is promised before the end, where everything becomes durable at once.
    options.durability = Durability::None;
    let mut reader = DumpReader { input, line: 0, items: 0 };
    reader.header().map_err(|words| Failure::broken(format!("{name}:{}: {words}", reader.line)))?;
    let store = open_or_make(options, new)?;
    let mut stored = 0;
    let loaded = load_items(&store, &mut reader, &name, &mut stored);
    // Also where it ends early: what is said to be stored is durable.
    let closed = store.sync().and_then(|()| store.close());
    match loaded {
        Err(failure) if closed.is_ok() => {
            Err(failure.and(&format!("{stored} items before that are stored")))
        }
        loaded => {
            loaded?;
            closed?;
            say(&format!("{stored} items loaded"));
            Ok(Done::Yes)
        }
    }
}

/// Stores items up to the end of the dump, and counts them.
fn load_items(
    store: &Store,
    reader: &mut DumpReader,
    name: &str,
    stored: &mut u64,
) -> Result<(), Failure> {
    let at = |line, words: &dyn Display| Failure::broken(format!("{name}:{line}: {words}"));
    let bar = progress("loading", 0);
    while let Some(item) = reader.item().map_err(|words| at(reader.line, &words))? {
        let (key, value, attributes) = item;
        let put = PutOptions { attributes, condition: Condition::Always };
        store.put_with(&key, &value, put).map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => at(reader.line, &error),
            _ => error.into(),
        })?;
        *stored += 1;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

type Parts = (Vec<u8>, Vec<u8>, Attributes);

/// For tests: all items of a dump.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_all(input: impl BufRead + 'static) -> Result<Vec<Parts>, String> {
    let mut reader = DumpReader { input: Box::new(input), line: 0, items: 0 };
    reader.header()?;
    std::iter::from_fn(|| reader.item().transpose()).collect()
}

/// Reads the lines of a dump.
struct DumpReader {
    input: Box<dyn BufRead>,
    line: u64,
    items: u64,
}

impl DumpReader {
    fn next_line(&mut self) -> Result<Vec<u8>, String> {
        let mut line = Vec::new();
        self.line += 1;
        self.input.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        Ok(line)
    }

    fn header(&mut self) -> Result<(), String> {
        self.line += 1;
        let mut line = Vec::new();
        // What is no dump may have no lines.
        let mut input = (&mut self.input).take(HEADER_SIZE_MAX);
        input.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        let header: Header =
            serde_json::from_slice(&line).map_err(|_| "this is no dump of esker".to_owned())?;
        if header.format != FORMAT {
            return Err("this is no dump of esker".into());
        }
        match header.version {
            VERSION => Ok(()),
            other => {
                Err(format!("version {other} of the dump format is unknown; {VERSION} is known"))
            }
        }
    }

    /// The next item; `None` at the end that the dump itself declares.
    fn item(&mut self) -> Result<Option<Parts>, String> {
        let line = self.next_line()?;
        if line.is_empty() {
            return Err("the dump is cut short".into());
        }
        if let Ok(trailer) = serde_json::from_slice::<Trailer>(&line) {
            if trailer.items != self.items {
                return Err(format!(
                    "{} items were dumped and {} are here",
                    trailer.items, self.items
                ));
            }
            let mut behind = self.next_line()?;
            while !behind.is_empty() && behind.trim_ascii().is_empty() {
                behind = self.next_line()?;
            }
            return match behind.is_empty() {
                true => Ok(None),
                false => Err("something follows the end of the dump; load one at a time".into()),
            };
        }
        let item: Item = serde_json::from_slice(&line).map_err(|error| match error.is_eof() {
            true => "the dump is cut short".to_owned(),
            // Without the text of the line: keys and values do not belong in messages.
            false => format!("column {} is not as in a dump", error.column()),
        })?;
        self.items += 1;
        item.parts().map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_survive_the_way_through_a_line() {
        let attributes = Attributes { flags: 7, expires_at: Some(1_767_225_600), state: 3 };
        for (key, value, attributes) in [
            (&b"text"[..], &b"more \"text\"\n"[..], attributes),
            (b"\xff", b"\x00\xfe", Attributes::default()),
            (b"k", b"", Attributes::default()),
        ] {
            let line = line_of(key, value, attributes).expect("JSON");
            assert!(!line.contains('\n'));
            let item: Item = serde_json::from_str(&line).expect("JSON");
            assert_eq!(item.parts(), Ok((key.to_vec(), value.to_vec(), attributes)));
        }
    }

    #[test]
    fn a_file_is_written_by_one_dump_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("items");
        std::fs::write(&path, b"").expect("a file");
        let mut first = Target::create(&path).map_err(|_| "first").expect("a target");
        let header = b"{\"format\":\"esker-dump\",\"version\":1}\n";
        first.file.write_all(header).expect("written");
        assert!(Target::create(&path).is_err(), "the first one is not done");
        first.finish().expect("done");
        assert_eq!(std::fs::read(&path).expect("a file"), header);
        let mut killed = Target::create(&path).map_err(|_| "next").expect("a target");
        killed.file.write_all(b"some more that was never done").expect("written");
        // A kill leaves the file, and no lock.
        let (until, _) = killed.names.take().expect("names");
        drop(killed);
        assert!(until.exists());
        let mut next = Target::create(&path).map_err(|_| "next").expect("a target");
        next.file.write_all(b"next").expect("written");
        next.finish().expect("done");
        assert_eq!(std::fs::read(&path).expect("a file"), b"next");
        assert!(!until.exists());
        assert!(Target::create(&path).is_err(), "what is there is no dump");
        assert_eq!(std::fs::read(&path).expect("a file"), b"next");
        assert!(!until.exists());
    }

    #[test]
    fn what_is_no_whole_dump_is_refused_in_words() {
        const HEAD: &str = "{\"format\":\"esker-dump\",\"version\":1}\n";
        assert_eq!(
            read_all(&b"{\"format\":\"esker-dump\",\"version\":1}\n{\"items\":0}\n\r\n\n"[..]),
            Ok(vec![])
        );
        for (text, words) in [
            ("", "no dump of esker"),
            ("{\"format\":\"other\",\"version\":1}\n", "no dump of esker"),
            (
                "{\"format\":\"esker-dump\",\"version\":2}\n",
                "version 2 of the dump format is unknown",
            ),
            (HEAD, "cut short"),
            ("{\"format\":\"esker-dump\",\"version\":1}\n{\"key\":\"a\",\"va", "cut short"),
            (
                "{\"format\":\"esker-dump\",\"version\":1}\n{\"items\":1}\n",
                "1 items were dumped and 0 are here",
            ),
            (
                "{\"format\":\"esker-dump\",\"version\":1}\n{\"items\":0}\n{\"format\":\"esker-dump\",\"version\":1}\n{\"items\":0}\n",
                "something follows the end",
            ),
            ("{\"format\":\"esker-dump\",\"version\":1}\n{\"key\":\"a\"}\n", "no value"),
            (
                "{\"format\":\"esker-dump\",\"version\":1}\n{\"key\":\"a\",\"colour\":1}\n",
                "not as in a dump",
            ),
            (
                "{\"format\":\"esker-dump\",\"version\":1}\n{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}\n",
                "in one item",
            ),
            (
                "{\"format\":\"esker-dump\",\"version\":1}\n{\"key_base64\":\"?\",\"value\":\"\"}\n",
                "key_base64",
            ),
        ] {
            let error = read_all(text.as_bytes()).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }
}
