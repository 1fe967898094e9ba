//! Objects in a directory: publication, verification, refusal.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::Path;

use bytes::Bytes;
use dipaco_store::{ObjectRef, RunStore, StoreError, StoreOptions, StoredObject, names};
use dipaco_topology::ModuleId;

const MODULE: ModuleId = ModuleId { level: 0, index: 3 };

fn directory() -> (tempfile::TempDir, RunStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::open(directory.path().to_str().unwrap()).unwrap();
    (directory, store)
}

fn file(directory: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    directory.path().join(name)
}

#[tokio::test]
async fn an_object_is_read_back_verified_also_by_another_process() {
    let (directory, store) = directory();
    let name = names::weights(MODULE, 0, 17, 0);
    let content = Bytes::from(vec![7; 1 << 20]);
    let reference = store.put(&name, content.clone()).await.unwrap();
    assert_eq!(reference, ObjectRef::of("modules/0/3/0/17-0", &content));
    assert!(store.contains(&name).await.unwrap());
    let address = format!("file://{}", directory.path().display());
    assert_eq!(RunStore::open(&address).unwrap().get(&reference).await.unwrap(), content);
}

#[tokio::test]
async fn the_same_content_may_be_put_again_different_content_may_not() {
    let (_directory, on_disk) = directory();
    for store in [on_disk, RunStore::in_memory()] {
        let name = names::weights(MODULE, 0, 1, 0);
        let first = store.put(&name, "weights".into()).await.unwrap();
        assert_eq!(store.put(&name, "weights".into()).await.unwrap(), first);
        let error = store.put(&name, "weightz".into()).await.unwrap_err();
        assert!(matches!(error, StoreError::Exists { .. }), "{error}");
        let error = store.put(&name, "longer weights".into()).await.unwrap_err();
        assert!(matches!(error, StoreError::Exists { .. }), "{error}");
        assert_eq!(store.get(&first).await.unwrap(), "weights");

        let second = store.put_replacing(&name, ["weightz".into()]).await.unwrap();
        assert_eq!(store.get(&second).await.unwrap(), "weightz");
        assert!(matches!(store.get(&first).await, Err(StoreError::Damaged { .. })));
    }
}

#[tokio::test]
async fn a_result_in_parts_of_memory_never_replaces_another_content_of_its_name() {
    let (_directory, on_disk) = directory();
    let parts = |content: &'static str, cut: usize| {
        let (first, second) = content.as_bytes().split_at(cut);
        [first, second].map(Bytes::from_static)
    };
    for store in [on_disk, RunStore::in_memory()] {
        let first = ObjectRef::of("paths/3/10-7", b"state");
        store.put_referenced(&first, parts("state", 2)).await.unwrap();
        // A repetition after a lost answer, cut in another place.
        store.put_referenced(&first, parts("state", 4)).await.unwrap();
        for other in ["stale", "states", "stat"] {
            let reference = ObjectRef::of(&first.name, other.as_bytes());
            let error = store.put_referenced(&reference, parts(other, 1)).await.unwrap_err();
            assert!(matches!(error, StoreError::Exists { .. }), "{error}");
        }
        assert_eq!(store.get(&first).await.unwrap(), "state");
    }
}

#[tokio::test]
async fn an_empty_object_is_an_object() {
    let (_directory, store) = directory();
    let reference = store.put("router/0", Bytes::new()).await.unwrap();
    assert_eq!(store.get(&reference).await.unwrap(), "");
}

#[tokio::test]
async fn errors_of_truncated_damaged_longer_and_missing_objects_name_object_and_remedy() {
    let (directory, store) = directory();
    let reference = store.put("modules/0/3/1", "0123456789".into()).await.unwrap();
    let path = file(&directory, "modules/0/3/1");

    fs::write(&path, "01234").unwrap();
    let error = store.get(&reference).await.unwrap_err();
    assert!(matches!(error, StoreError::Cut { expected: 10, found: 5, .. }));
    assert!(
        error.to_string().contains("`modules/0/3/1`") && error.to_string().contains("restore"),
        "{error}"
    );

    for content in ["0123x56789", "01234567890"] {
        fs::write(&path, content).unwrap();
        let error = store.get(&reference).await.unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }));
        assert!(error.to_string().contains("`modules/0/3/1`"), "{error}");
    }

    store.delete("modules/0/3/1").await.unwrap();
    assert!(matches!(store.get(&reference).await, Err(StoreError::Missing { .. })));
    assert!(!store.contains("modules/0/3/1").await.unwrap());
    store.delete("modules/0/3/1").await.unwrap();
}

#[tokio::test]
async fn ranges_of_an_object_are_its_bytes_and_its_length_is_verified() {
    let (directory, store) = directory();
    let reference = store.put("modules/0/3/1", "0123456789".into()).await.unwrap();
    for (range, part) in [(0..4, "0123"), (4..8, "4567"), (8..12, "89"), (10..12, "")] {
        assert_eq!(store.get_range(&reference, range).await.unwrap(), part);
    }
    let path = file(&directory, "modules/0/3/1");
    fs::write(&path, "012345").unwrap();
    let error = store.get_range(&reference, 0..4).await.unwrap_err();
    assert!(matches!(error, StoreError::Cut { expected: 10, found: 6, .. }), "{error}");
    fs::write(&path, "01234567890").unwrap();
    let error = store.get_range(&reference, 0..4).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn leftovers_of_an_interrupted_put_are_invisible_and_harmless() {
    let (directory, store) = directory();
    fs::create_dir_all(file(&directory, "modules/0/3")).unwrap();
    // A killed writer leaves its staging file; only a complete staging file gets its name.
    fs::write(file(&directory, "modules/0/3/1#1"), "half of the wei").unwrap();
    assert!(!store.contains("modules/0/3/1").await.unwrap());
    assert_eq!(store.list("").await.unwrap(), []);
    let reference = store.put("modules/0/3/1", "all of the weights".into()).await.unwrap();
    assert_eq!(store.get(&reference).await.unwrap(), "all of the weights");
    assert_eq!(store.list("modules").await.unwrap(), [StoredObject { name: reference.name, bytes: 18 }]);
}

#[tokio::test]
async fn lists_are_sorted_and_by_whole_segments() {
    let (_directory, store) = directory();
    for name in ["modules/1/0/2", "modules/10/0/1", "modules/1/0/10", "paths/0/1"] {
        store.put(name, "x".into()).await.unwrap();
    }
    let names = async |prefix| {
        store.list(prefix).await.unwrap().into_iter().map(|object| object.name).collect::<Vec<_>>()
    };
    assert_eq!(names("modules/1").await, ["modules/1/0/10", "modules/1/0/2"]);
    assert_eq!(names("").await.len(), 4);
    assert!(names("router").await.is_empty());
}

#[tokio::test]
async fn names_that_leave_the_store_or_hide_in_it_are_refused() {
    let (directory, store) = directory();
    for name in
        ["", "/", "../outside", "modules//1", "modules/../../x", "a/b/", "/etc/passwd", "m/0#1", "manifest/1"]
    {
        let error = store.put(name, "x".into()).await.unwrap_err();
        assert!(matches!(error, StoreError::Name { .. }), "{name}: {error}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn errors_of_invalid_addresses_give_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let a_file = directory.path().join("file");
    fs::write(&a_file, "x").unwrap();
    let message = |address: &Path| RunStore::open(address.to_str().unwrap()).unwrap_err().to_string();
    assert!(message(&missing).contains("there is no run store at"));
    assert!(message(&a_file).contains("not a directory"));
    assert!(message(Path::new("ftp://host/x")).contains("scheme ftp:// is unknown"));
    assert!(message(Path::new("")).contains("it is empty"));
    assert!(RunStore::create(a_file.join("below").to_str().unwrap()).is_err());

    RunStore::create(missing.to_str().unwrap()).unwrap();
    RunStore::open(missing.to_str().unwrap()).unwrap();
}

#[test]
fn cloud_addresses_are_opened_with_the_settings_given() {
    let settings = vec![("aws_region".to_owned(), "eu-west-1".to_owned())];
    RunStore::open_with("s3://bucket/run", &StoreOptions { durable: true, settings }).unwrap();
}

#[test]
fn an_address_with_a_secret_is_refused_without_repeating_it() {
    for address in ["s3://key:hush@bucket/run", "az://container/run?sig=hush", "gs://bucket/run#hush"] {
        let error = RunStore::open(address).unwrap_err();
        assert!(matches!(error, StoreError::SecretInAddress), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
    let settings = vec![("aws_secret_access_key".to_owned(), "hush".to_owned())];
    assert!(!format!("{:?}", StoreOptions { durable: true, settings }).contains("hush"));
}

#[tokio::test]
async fn without_durability_nothing_else_changes() {
    let directory = tempfile::tempdir().unwrap();
    let options = StoreOptions { durable: false, ..StoreOptions::default() };
    let store = RunStore::create_with(directory.path().to_str().unwrap(), &options).unwrap();
    let reference = store.put("paths/0/1", "state".into()).await.unwrap();
    assert_eq!(store.get(&reference).await.unwrap(), "state");
}
