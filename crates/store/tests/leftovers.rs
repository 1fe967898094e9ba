//! What other processes leave in a store: pins of readers, unfinished writes, empty folders.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_store::{RunStore, names};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn pins_hold_until_their_end_or_their_removal() {
    let folder = tempfile::tempdir().unwrap();
    for store in [RunStore::in_memory(), RunStore::create(&folder.path().to_string_lossy()).unwrap()] {
        let now = SystemTime::now();
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        assert!(store.pinned(now).await.unwrap().is_empty());
        store.pin("one", set(&["a", "b"]), now + MINUTE).await.unwrap();
        store.pin("two", set(&["b", "c"]), now + 3 * MINUTE).await.unwrap();
        assert_eq!(store.pinned(now).await.unwrap(), set(&["a", "b", "c"]));
        assert_eq!(store.pinned(now + 2 * MINUTE).await.unwrap(), set(&["b", "c"]));
        assert!(!store.contains(&names::reader("one")).await.unwrap(), "a pin that has ended is removed");
        store.pin("two", set(&["d"]), now + 3 * MINUTE).await.unwrap();
        assert_eq!(store.pinned(now).await.unwrap(), set(&["d"]));
        store.unpin("two").await.unwrap();
        assert!(store.pinned(now).await.unwrap().is_empty());
        // A pin that can't be read pins nothing, and does no harm.
        for broken in ["{", r#"{"ends":18446744073709551615,"objects":["e"]}"#] {
            store.put_replacing(&names::reader("broken"), [broken.into()]).await.unwrap();
            assert!(store.pinned(now).await.unwrap().is_empty());
            assert!(!store.contains(&names::reader("broken")).await.unwrap());
        }
    }
}

#[tokio::test]
async fn old_unfinished_writes_and_empty_folders_are_swept() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
    let object = store.put("modules/0/1/0/2-3", "weights".into()).await.unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["modules/0/1/0/4-5#1", "modules/0/1/0/4-5#22", "modules/0/1/0/new#7"] {
        fs::write(at(name), "half").unwrap();
    }
    fs::create_dir_all(at("outer-gradients/0/1/0/7")).unwrap();
    let hour_ago = SystemTime::now() - 60 * MINUTE;
    let old = hour_ago - MINUTE;
    let age = |name: &str| File::open(at(name)).unwrap().set_modified(old).unwrap();
    for name in ["modules/0/1/0/4-5#1", "modules/0/1/0/4-5#22", "modules/0/1/0/2-3"] {
        age(name);
    }
    for name in ["outer-gradients/0/1/0/7", "outer-gradients/0/1/0", "modules/0/1/0"] {
        age(name);
    }

    assert_eq!(store.sweep(hour_ago).await.unwrap(), 2);
    assert_eq!(store.get(&object).await.unwrap(), "weights");
    assert!(at("modules/0/1/0/new#7").exists(), "a write that may still go on");
    assert!(!at("outer-gradients/0/1/0/7").exists() && !at("outer-gradients/0/1/0").exists());
    assert!(at("outer-gradients/0/1").exists(), "a new folder");
    assert_eq!(RunStore::in_memory().sweep(hour_ago).await.unwrap(), 0);
}

#[tokio::test]
async fn leftovers_that_can_not_be_removed_are_told_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("store").to_string_lossy().into_owned();
    let store = RunStore::create(&address).unwrap();
    fs::remove_dir(&address).unwrap();
    let error = store.sweep(SystemTime::now()).await.unwrap_err().to_string();
    assert!(error.contains("leftovers of earlier processes can't be removed"), "{error}");
    assert!(error.contains(&address) && !error.contains("is not a valid address"), "{error}");
}

#[tokio::test]
async fn a_folder_goes_with_its_last_object_and_a_verified_object_is_not_held() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
    let name = "outer-gradients/0/1/0/7/3-9";
    let object = store.put(name, vec![7; 100_000].into()).await.unwrap();
    store.verify(&object).await.unwrap();
    fs::write(folder.path().join(name), vec![8; 100_000]).unwrap();
    assert!(store.verify(&object).await.is_err());
    store.delete(name).await.unwrap();
    assert!(!folder.path().join("outer-gradients/0/1/0/7").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_written_while_the_last_ones_of_its_folder_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(folder.path().to_str().unwrap()).unwrap();
    for _ in 0..200 {
        let [a, b, next] = ["a", "b", "next"].map(|name| format!("momenta/0/1/0/{name}"));
        for name in [&a, &b] {
            store.put(name, Bytes::from_static(b"old")).await.unwrap();
        }
        // Each deletion removes the folder that the other one or the write has just made, if it is empty.
        let (written, first, second) =
            tokio::join!(store.put(&next, Bytes::from_static(b"new")), store.delete(&a), store.delete(&b));
        first.and(second).unwrap();
        assert_eq!(store.get(&written.unwrap()).await.unwrap(), b"new".as_slice());
        store.delete(&next).await.unwrap();
    }
}
