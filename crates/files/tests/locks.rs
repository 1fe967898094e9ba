//! Files that are opened to be locked.

use std::fs::{self, TryLockError};
use std::io::{Read, Write};

use dipaco_files::open_to_lock;

#[test]
fn a_file_to_lock_can_be_read_and_written_and_keeps_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    // NFS gives a shared lock for reading only, and an exclusive one for writing only.
    let mut new = open_to_lock(&path).unwrap();
    new.write_all(b"one").unwrap();
    let mut content = String::new();
    open_to_lock(&path).unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "one");
    assert_eq!(fs::read(&path).unwrap(), b"one");
}

#[test]
fn an_exclusive_lock_excludes_every_other_and_shared_ones_exclude_it() {
    let folder = tempfile::tempdir().unwrap();
    let open = || open_to_lock(&folder.path().join("lock")).unwrap();
    let (one, other) = (open(), open());
    one.try_lock().unwrap();
    assert!(matches!(other.try_lock_shared(), Err(TryLockError::WouldBlock)));
    drop(one);
    other.try_lock_shared().unwrap();
    let third = open();
    third.try_lock_shared().unwrap();
    assert!(matches!(open().try_lock(), Err(TryLockError::WouldBlock)));
}
