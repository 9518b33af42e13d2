//! What memcached does with its process: into the background, to another user, files with its id and its ports.
//!
//! The background is a second run of the program: the first one starts it with the same words,
//! repeats what it says until it is ready, and ends. So no process is ever cut in two, and whoever
//! started it hears of a failure and gets its exit code.

use crate::failure::{Done, Failure};
use crate::service::say;
use esker_server::ListenAddress;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Says to a second run that it is one.
const MARK: &str = "ESKER_IN_BACKGROUND";
/// A name of the system's users, as it is written in the files.
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Names the file for ports, as memcached has it: who starts a server at any port (`-p -1`) reads there which one it took.
const PORTS: &str = "MEMCACHED_PORT_FILENAME";

/// Whether this run is the one in the background.
pub(super) fn in_background() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts this program again, in the background, and waits until it serves.
pub(super) fn start_in_background() -> Result<Done, Failure> {
    let failed = |source: std::io::Error| Failure::io("start in the background", &source);
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let said = child.stderr.take().map(BufReader::new);
    for line in said.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
        say(&line);
        if line == "ready" {
            return Ok(Done::Yes);
        }
    }
    let code = child.wait().map_err(failed)?.code();
    Err(match code {
        Some(code) => Failure::broken(format!(
            "memcached: it ended before it was ready, with exit code {code}"
        ))
        .with_code_of(code),
        None => Failure::broken("memcached: it was killed before it was ready"),
    })
}

/// Leaves the session of whoever started us; called first in the background.
pub(super) fn leave_session() -> Result<(), Failure> {
    let failed = |source: rustix::io::Errno| Failure::io("leave the session", &source.into());
    rustix::process::setsid().map(drop).map_err(failed)
}

/// Nobody reads what is said from here on.
pub(super) fn fall_silent() -> Result<(), Failure> {
    let failed = |source: rustix::io::Errno| Failure::io("/dev/null", &source.into());
    let nowhere = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stderr(&nowhere).map_err(failed)
}

/// A file with the id of this process; goes away with it. Until the process serves, whatever is in it stays: another one
/// may run whose id that is.
pub(super) struct PidFile<'p> {
    path: &'p Path,
    file: File,
    /// What is in it is ours: the id, or nothing if there was no file before.
    own: Option<String>,
}

impl<'p> PidFile<'p> {
    /// Opens the file, with the rights that the process begins with.
    pub(super) fn open(path: &'p Path) -> Result<PidFile<'p>, Failure> {
        let open = |how: OFlags| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | how;
            rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
        };
        let (file, own) = match open(OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => (open(OFlags::CREATE), None),
            made => (made, Some(String::new())),
        };
        let file = file.map_err(|errno| Failure::io(path.display(), &errno.into()))?;
        Ok(PidFile { path, file: file.into(), own })
    }

    /// Writes the id in place of what was there.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        if !self.has_its_name() {
            // One that ended took it away meanwhile.
            *self = PidFile::open(self.path)?;
        }
        let text = format!("{}\n", std::process::id());
        let emptied = match self.file.metadata() {
            Ok(found) if found.is_file() => self.file.set_len(0),
            other => other.map(drop),
        };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        self.own = Some(text);
        written.map_err(|source| Failure::io(self.path.display(), &source))
    }

    /// Whether the file of that name is still the one that was opened.
    fn has_its_name(&self) -> bool {
        let named = rustix::fs::stat(self.path).ok().zip(rustix::fs::fstat(&self.file).ok());
        named
            .is_some_and(|(named, open)| (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
    }

    /// Whether what is in the file of that name is ours.
    fn is_own(&self) -> bool {
        let mut bytes = [0; 32];
        let count = self.file.read_at(&mut bytes, 0).ok();
        let text = count.and_then(|count| bytes.get(..count));
        self.has_its_name() && text.is_some() && text == self.own.as_deref().map(str::as_bytes)
    }
}

impl Drop for PidFile<'_> {
    fn drop(&mut self) {
        if self.is_own() {
            // Another user may own the folder now; then the file stays, as memcached's does.
            let _ = rustix::fs::unlink(self.path);
        }
    }
}

/// A file with the ports of this process, a line each, as memcached writes it. It appears with all of them, and stays.
pub(super) struct PortsFile(PathBuf);

impl PortsFile {
    /// The file that the environment names; a relative path is that of whoever started the process.
    pub(super) fn named() -> Result<Option<PortsFile>, Failure> {
        let Some(path) = std::env::var_os(PORTS) else { return Ok(None) };
        let whole = std::path::absolute(&path).map_err(|source| Failure::io(PORTS, &source))?;
        Ok(Some(PortsFile(whole)))
    }

    pub(super) fn write(&self, addresses: &[ListenAddress]) -> Result<(), Failure> {
        let mut lines = String::new();
        for address in addresses {
            if let ListenAddress::Tcp(address) = address {
                let family = if address.is_ipv4() { "INET" } else { "INET6" };
                lines.push_str(&format!("TCP {family}: {}\n", address.port()));
            }
        }
        let mut beside = self.0.clone().into_os_string();
        beside.push(".lck");
        let failed = |source: std::io::Error| Failure::io(self.0.display(), &source);
        std::fs::write(&beside, lines).map_err(failed)?;
        std::fs::rename(&beside, &self.0).map_err(failed)
    }
}

/// Becomes `user`, if this is root's process; called while it has one thread, whose rights the later
/// ones inherit.
pub(super) fn become_user(user: Option<&str>) -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let Some(name) = user else {
        return Err(Failure::usage("memcached: can't run as root without the -u switch"));
    };
    let entry = find_user(&read(PASSWD)?, name)
        .ok_or_else(|| {
            Failure::usage(format!(
                "memcached: -u: there is no user {name:?} in {PASSWD}; those that only a directory service knows \
are not looked up: start it as that user, without -u (User= of systemd, setpriv, su)"
            ))
        })?;
    if entry.0 == 0 {
        return Ok(());
    }
    let groups = find_groups(&read(GROUP)?, name);
    let groups: Vec<Gid> = groups.into_iter().chain([entry.1]).map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(entry.0), Gid::from_raw(entry.1));
    rustix::thread::set_thread_groups(&groups)
        .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
        .and_then(|()| rustix::thread::set_thread_res_uid(uid, uid, uid))
        .map_err(|source| Failure::io(format!("become the user {name}"), &source.into()))
}

fn read(path: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    #[expect(clippy::disallowed_methods, reason = "no data of the store")]
    let file = std::fs::File::open(path);
    file.and_then(|mut file| std::io::Read::read_to_end(&mut file, &mut bytes))
        .map_err(|source| Failure::io(path, &source))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// User and group of a name.
fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let known = fields.next()? == name && fields.next().is_some();
        let ids = known.then(|| Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)));
        ids.flatten()
    })
}

/// Groups that a name is in.
fn find_groups(group: &str, name: &str) -> Vec<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let id = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(id)
    };
    group.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_taken_away_meanwhile_is_made_again() {
        let folder = tempfile::tempdir().expect("scratch folder");
        let path = folder.path().join("pid");
        std::fs::write(&path, "1\n").expect("write");
        let mut file = PidFile::open(&path).expect("opened");
        assert_eq!(std::fs::read(&path).expect("there"), b"1\n");
        std::fs::remove_file(&path).expect("taken away");
        file.write().expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        assert_eq!(text.trim(), std::process::id().to_string());
        drop(file);
        assert!(!path.exists());
        // What is no file stays.
        let nowhere = Path::new("/dev/null");
        let mut file = PidFile::open(nowhere).expect("opened");
        file.write().expect("written");
        drop(file);
        assert!(nowhere.exists());
    }

    #[test]
    fn users_and_their_groups_are_found_by_name() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nmem:x:107:111::/nonexistent:/bin/false\n";
        assert_eq!(find_user(passwd, "mem"), Some((107, 111)));
        assert_eq!(find_user(passwd, "me"), None);
        assert_eq!(find_user("broken", "broken"), None);
        let group = "root:x:0:\nssl:x:109:web,mem\nmem:x:111:\nmemx:x:5:memx\n";
        assert_eq!(find_groups(group, "mem"), [109]);
    }
}
