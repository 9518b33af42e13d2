//! Archives on a real file system.

use super::*;
use esker_base::SiteKind;

const FLUSH: Site = Site::new("test.archive.flush", SiteKind::Flush);

fn put(archive: &dyn Archive, file: &str, bytes: &[u8]) {
    let mut writer = archive.create(file).unwrap();
    bytes.chunks(7).for_each(|piece| writer.write(piece).unwrap());
    writer.finish(FLUSH).unwrap();
}

#[test]
fn files_are_written_read_renamed_and_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let archive = FolderArchive::create(&scratch.path().join("some/where")).unwrap();
    put(&archive, "one", b"the first file");
    put(&archive, "two", b"");
    archive.flush(FLUSH).unwrap();
    let mut names = archive.list().unwrap();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(archive.size_bytes_of("one").unwrap(), Some(14));
    assert_eq!(archive.size_bytes_of("three").unwrap(), None);
    let mut buf = [0; 20];
    assert_eq!(archive.read_at("one", 4, &mut buf).unwrap(), 10);
    assert_eq!(&buf[..10], b"first file");
    archive.rename("one", "two").unwrap();
    put(&archive, "two", b"short");
    assert_eq!(archive.size_bytes_of("two").unwrap(), Some(5));
    archive.remove("two").unwrap();
    assert!(archive.list().unwrap().is_empty());
    let error = archive.read_at("two", 0, &mut buf).unwrap_err();
    assert!(error.to_string().contains("two"), "{error}");
}

#[test]
fn those_who_change_a_folder_exclude_others_and_readers_do_not() {
    let scratch = tempfile::tempdir().unwrap();
    let writer = FolderArchive::create(scratch.path()).unwrap();
    assert_eq!(FolderArchive::open(scratch.path()).unwrap_err().kind(), ErrorKind::Locked);
    assert_eq!(FolderArchive::create(scratch.path()).unwrap_err().kind(), ErrorKind::Locked);
    drop(writer);
    let reader = FolderArchive::open(scratch.path()).unwrap();
    let _other = FolderArchive::open(scratch.path()).unwrap();
    assert_eq!(reader.create("file").err().unwrap().kind(), ErrorKind::ReadOnly);
    assert_eq!(reader.remove("file").unwrap_err().kind(), ErrorKind::ReadOnly);
    let missing = FolderArchive::open(&scratch.path().join("missing")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidArgument);
}
