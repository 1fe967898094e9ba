//! Publication, replacement and failure of files.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use dipaco_files::{PendingFile, content_hash, file_hash, publish, publish_private, publish_private_new};

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<std::io::Result<_>>()?;
    names.sort();
    Ok(names)
}

#[test]
fn a_file_is_published_and_replaced_without_leftovers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    for content in [&b"first"[..], b"a longer second", b""] {
        publish(&path, content).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content);
        assert_eq!(file_hash(&path).unwrap(), content_hash(content));
        assert_eq!(names(folder.path()).unwrap(), ["record.json"]);
    }
}

#[test]
fn a_pending_file_is_hidden_until_it_is_published_and_gone_when_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.h5");
    publish(&path, b"old").unwrap();
    let mut pending = PendingFile::create(&path).unwrap();
    pending.write_all(b"____ content").unwrap();
    pending.seek(SeekFrom::Start(0)).unwrap();
    pending.file_mut().write_all(b"new").unwrap();
    let name = pending.temporary_path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with(".train.h5") && name.ends_with(".tmp"), "{name}");
    assert_eq!((pending.destination(), pending.file().metadata().unwrap().len()), (path.as_path(), 12));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    pending.publish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new_ content");

    drop(PendingFile::create(&path).unwrap());
    assert_eq!(names(folder.path()).unwrap(), ["train.h5"]);
}

#[test]
fn a_new_file_replaces_none_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key.pem");
    assert!(publish_private_new(&path, b"first").unwrap());
    assert!(!publish_private_new(&path, b"second").unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names(folder.path()).unwrap(), ["key.pem"]);
}

#[test]
fn an_error_names_the_action_and_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("record.json");
    let error = publish(&missing, b"content").unwrap_err();
    assert_eq!(
        (error.action, error.path.as_path()),
        ("create a temporary file in", missing.parent().unwrap())
    );
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!(error.source.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(file_hash(&missing).unwrap_err().action, "open");

    // A folder stands where the file should go: the temporary file is removed all the same.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let error = publish(&taken, b"content").unwrap_err();
    assert_eq!((error.action, error.path.as_path()), ("rename a temporary file to", taken.as_path()));
    assert_eq!(names(folder.path()).unwrap(), ["taken"]);
}

#[cfg(unix)]
#[test]
fn a_private_file_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    publish_private(&folder.path().join("key"), b"secret").unwrap();
    assert_eq!(mode("key"), 0o600);
    publish(&folder.path().join("record"), b"public").unwrap();
    // The umask takes rights away, and never adds one to run the file.
    assert_eq!(mode("record") & 0o611, 0o600);
}
