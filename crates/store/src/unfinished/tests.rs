//! Tests of unfinished objects.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use super::*;

/// Length of the pieces in which content comes.
const PIECE: usize = 1 << 20;

fn in_folder() -> (tempfile::TempDir, RunStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
    (folder, store)
}

/// More than a part of a remote store.
fn content() -> Vec<u8> {
    (0..PART + PIECE + 7).map(|at| (at % 251) as u8).collect()
}

/// An object with this name and content, which came backwards.
fn begun(store: &RunStore, name: &str, content: &[u8], scratch: &Path) -> Arc<UnfinishedObject> {
    let object = store.begin(ObjectRef::of(name, content), scratch).unwrap();
    for (number, piece) in content.chunks(PIECE).enumerate().rev() {
        object.write((number * PIECE) as u64, piece).unwrap();
    }
    Arc::new(object)
}

/// The files and folders below a folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(entries(&path));
        }
        found.push(path);
    }
    found
}

#[tokio::test]
async fn in_a_directory_the_file_becomes_the_object_and_nothing_else_is_written() {
    let (folder, store) = in_folder();
    let (store, load) = store.counted();
    let content = content();
    let object = begun(&store, "paths/3/10-hash", &content, Path::new("no folder"));
    assert_eq!(store.list("").await.unwrap(), []);
    let file = fs::metadata(&object.place).unwrap().ino();
    assert!(object.read(PIECE as u64 - 3..PIECE as u64 + 3).unwrap() == content[PIECE - 3..PIECE + 3]);
    object.publish().await.unwrap().unwrap();
    let place = folder.path().join("paths/3/10-hash");
    assert_eq!(fs::metadata(&place).unwrap().ino(), file);
    drop(object);
    assert!(store.get(&ObjectRef::of("paths/3/10-hash", &content)).await.unwrap() == content);
    assert_eq!(entries(folder.path()).len(), 3, "the object and its folders");
    assert!(load.writes().is_empty(), "{:?}", load.writes());
}

#[tokio::test]
async fn an_object_that_is_not_published_leaves_neither_file_nor_folder() {
    let (folder, store) = in_folder();
    let one = begun(&store, "paths/3/10-hash", b"half", Path::new("no folder"));
    let other = begun(&store, "paths/3/10-hash", b"all", Path::new("no folder"));
    assert_eq!(one.read(0..4).unwrap(), "half", "each has a file of its own");
    assert!(matches!(other.read(1..4), Ok(part) if part == "ll"), "a part ends with the content");
    drop(one);
    other.publish().await.unwrap().unwrap();
    drop(other);
    assert_eq!(entries(folder.path()).len(), 3, "the object and its folders");
    drop(begun(&store, "outer-gradients/0/1", b"half", Path::new("no folder")));
    assert_eq!(entries(folder.path()).len(), 3);
    let error = store.begin(ObjectRef::of("../outside", b"all"), Path::new("no folder")).unwrap_err();
    assert!(error.to_string().contains("can't create a file"), "{error}");
}

#[tokio::test]
async fn in_every_store_the_same_content_may_be_published_again_and_another_one_may_not() {
    let (_folder, in_folder) = in_folder();
    let scratch = tempfile::tempdir().unwrap();
    for store in [in_folder, RunStore::in_memory(), RunStore::in_parts_in_memory()] {
        for content in [content(), b"small".to_vec(), Vec::new()] {
            let name = format!("paths/3/{}", content.len());
            let [first, again] = [(); 2].map(|()| begun(&store, &name, &content, scratch.path()));
            first.publish().await.unwrap().unwrap();
            again.publish().await.unwrap().unwrap();
            assert!(entries(scratch.path()).is_empty(), "files there have no names");
            let mut other = content.clone();
            other.push(1);
            let error = begun(&store, &name, &other, scratch.path()).publish().await.unwrap_err();
            assert!(matches!(error, StoreError::Exists { .. }), "{error}");
            assert!(store.get(&ObjectRef::of(&name, &content)).await.unwrap() == content);
        }
    }
}

#[tokio::test]
async fn a_file_that_the_sweep_has_removed_is_not_published() {
    let (folder, store) = in_folder();
    let object = begun(&store, "paths/3/10-hash", b"all", Path::new("no folder"));
    assert_eq!(store.sweep(SystemTime::now() + Duration::from_secs(60)).await.unwrap(), 1);
    let error = object.publish().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("can't publish a file"), "{error}");
    assert_eq!(store.list("").await.unwrap(), []);
    // A later object of the same name gets a file of its own, and keeps it.
    let later = begun(&store, "paths/3/10-hash", b"garbage", Path::new("no folder"));
    assert_ne!(later.place, object.place);
    object.publish().await.unwrap().unwrap_err();
    assert_eq!(store.list("").await.unwrap(), []);
    drop(object);
    later.publish().await.unwrap().unwrap();
    drop((later, folder));
}

#[tokio::test]
async fn a_file_that_has_taken_the_name_of_another_one_is_not_published() {
    let (folder, store) = in_folder();
    let object = begun(&store, "paths/3/10-hash", b"all", Path::new("no folder"));
    fs::remove_file(&object.place).unwrap();
    fs::write(&object.place, "garbage").unwrap();
    let error = object.publish().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("another file has taken its name"), "{error}");
    assert_eq!(store.list("").await.unwrap(), []);
    drop((object, folder));
}

#[tokio::test]
async fn content_that_has_not_come_is_an_error() {
    let (_folder, store) = in_folder();
    let object = store.begin(ObjectRef::of("paths/3/10-hash", &[7; 100]), Path::new("no folder")).unwrap();
    object.write(0, &[7; 50]).unwrap();
    let error = object.read(40..60).unwrap_err();
    assert!(error.to_string().contains("can't read a file"), "{error}");
}
