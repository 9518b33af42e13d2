//! Archives in one file, on a real file system.

use super::*;
use crate::archive::FolderArchive;
use esker_base::SiteKind;

const FLUSH: Site = Site::new("test.tar.flush", SiteKind::Flush);

fn put(archive: &dyn Archive, file: &str, bytes: &[u8]) {
    let mut writer = archive.create(file).unwrap();
    bytes.chunks(300).for_each(|piece| writer.write(piece).unwrap());
    writer.finish(FLUSH).unwrap();
}

fn get(archive: &dyn Archive, file: &str) -> Vec<u8> {
    let size = archive.size_bytes_of(file).unwrap().expect("it is there");
    let mut bytes = vec![0; usize::try_from(size).unwrap() + 5];
    let read = archive.read_at(file, 0, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Files that end at blocks, and next to them.
fn files() -> Vec<(String, Vec<u8>)> {
    let size = |n: usize| [0, 1, 511, 512, 513, 1024, 70_000][n % 7];
    (0..14_u8).map(|n| (format!("file-{n}"), vec![n + 1; size(n.into())])).collect()
}

#[test]
fn what_was_put_in_is_there_and_a_tar_to_others() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("archive.tar");
    let archive = TarArchive::create(&path).unwrap();
    for (file, bytes) in files() {
        put(&archive, &file, &bytes);
        assert_eq!(get(&archive, &file), bytes);
    }
    archive.rename("file-3", "MANIFEST").unwrap();
    // What is not finished is no part of it.
    let mut writer = archive.create("never").unwrap();
    writer.write(&[9; 3000]).unwrap();
    assert_eq!(archive.create("beside").err().unwrap().kind(), ErrorKind::Locked);
    drop(writer);
    archive.flush(FLUSH).unwrap();
    assert!(!path.exists());
    archive.publish().unwrap();
    assert_eq!(archive.create("late").err().unwrap().kind(), ErrorKind::ReadOnly);
    drop(archive);
    let archive = TarArchive::open(&path).unwrap();
    let renamed = |file: &str| if file == "file-3" { "MANIFEST".into() } else { file.to_owned() };
    assert_eq!(archive.list().unwrap().len(), files().len());
    for (file, bytes) in files() {
        assert_eq!(get(&archive, &renamed(&file)), bytes, "{file}");
    }
    assert_eq!(archive.size_bytes_of("never").unwrap(), None);
    assert_eq!(archive.read_at("never", 0, &mut [0]).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(archive.remove("file-1").unwrap_err().kind(), ErrorKind::ReadOnly);
    // Who knows nothing of it extracts a folder, and packs one.
    let folder = scratch.path().join("folder");
    let open =
        |path: &Path| File::from(rustix::fs::open(path, OFlags::RDONLY, Mode::empty()).unwrap());
    ::tar::Archive::new(open(&path)).unpack(&folder).unwrap();
    let extracted = FolderArchive::open(&folder).unwrap();
    for (file, bytes) in files() {
        assert_eq!(get(&extracted, &renamed(&file)), bytes, "{file}");
    }
    let mut packed = ::tar::Builder::new(Vec::new());
    packed.append_dir_all(".", &folder).unwrap();
    let again = scratch.path().join("again.tar");
    std::fs::write(&again, packed.into_inner().unwrap()).unwrap();
    let again = TarArchive::open(&again).unwrap();
    assert_eq!(again.list().unwrap(), archive.list().unwrap());
    assert_eq!(get(&again, "MANIFEST"), get(&archive, "MANIFEST"));
}

#[test]
fn what_was_there_stays_until_the_new_one_is_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("archive");
    let made = |bytes: &[u8]| {
        let archive = TarArchive::create(&path).unwrap();
        put(&archive, "file", bytes);
        archive
    };
    made(b"first").publish().unwrap();
    let second = made(b"second");
    assert_eq!(TarArchive::create(&path).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(get(&TarArchive::open(&path).unwrap(), "file"), b"first");
    drop(second);
    let left = std::fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(left, 1, "what was given up is gone");
    // As a kill leaves it.
    std::fs::write(scratch.path().join(".archive.esker"), vec![7; 9000]).unwrap();
    made(b"third").publish().unwrap();
    assert_eq!(get(&TarArchive::open(&path).unwrap(), "file"), b"third");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
}

#[test]
fn what_is_no_whole_tar_is_said_to_be_none() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("archive");
    assert_eq!(TarArchive::create(scratch.path()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(TarArchive::open(&path).unwrap_err().kind(), ErrorKind::Io);
    let archive = TarArchive::create(&path).unwrap();
    put(&archive, "one", &[1; 5000]);
    put(&archive, "two", &[2; 5000]);
    archive.publish().unwrap();
    drop(archive);
    let bytes = std::fs::read(&path).unwrap();
    for cut in (0..12_000).step_by(100) {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        match TarArchive::open(&path) {
            Ok(archive) => {
                // Cut where an entry ends, it is a shorter one.
                for file in archive.list().unwrap() {
                    assert_eq!(get(&archive, &file).len(), 5000, "{cut}");
                }
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupted, "{cut}: {error}"),
        }
    }
    std::fs::write(&path, vec![b'x'; 3000]).unwrap();
    assert_eq!(TarArchive::open(&path).unwrap_err().kind(), ErrorKind::Corrupted);
}

#[test]
fn a_file_that_was_given_up_takes_no_room_behind_the_others() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("archive.tar");
    let archive = TarArchive::create(&path).unwrap();
    let mut writer = archive.create("given-up").unwrap();
    writer.write(&[7; 100_000]).unwrap();
    drop(writer);
    put(&archive, "small", b"few");
    archive.publish().unwrap();
    drop(archive);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() < 8192 && !bytes.contains(&7), "{} bytes", bytes.len());
    assert_eq!(get(&TarArchive::open(&path).unwrap(), "small"), b"few");
}

#[test]
fn a_file_that_somebody_put_beside_is_not_what_becomes_the_archive() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let scratch = tempfile::tempdir().unwrap();
    let (path, beside) = (scratch.path().join("archive"), scratch.path().join(".archive.esker"));
    std::fs::write(&beside, b"open to all").unwrap();
    std::fs::set_permissions(&beside, PermissionsExt::from_mode(0o666)).unwrap();
    // Held, so that its number is not given to another file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let theirs = rustix::fs::open(&beside, flags, Mode::empty()).unwrap();
    let archive = TarArchive::create(&path).unwrap();
    put(&archive, "file", b"secret");
    archive.publish().unwrap();
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.mode() & 0o777, 0o600);
    assert_ne!(found.ino(), rustix::fs::fstat(&theirs).unwrap().st_ino);
}
