//! A run in Azure Blob Storage, over Azurite: the same promises as in a folder and on S3. `scripts/check-azure.sh` runs them.
#![allow(clippy::unwrap_used)]

use dipaco_store::{RunStore, StoreError};
use dipaco_tests::azurite::Azurite;
use dipaco_tests::object_store::BUCKET;
use dipaco_tests::training::{undisturbed, untrained};
use support::{long_content, open, race_of_writers};

mod support;

fn store(server: &Azurite) -> RunStore {
    open(&format!("az://{BUCKET}/store"), server.environment())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_writers_wins() {
    let server = Azurite::start();
    let store = store(&server);
    store.check_writable().await.unwrap();
    race_of_writers(&store).await;
}

#[tokio::test]
async fn large_objects_arrive_whole_and_are_never_replaced() {
    let server = Azurite::start();
    let store = store(&server);
    let content = long_content();
    let object = store.put("modules/a", content.clone()).await.unwrap();
    assert!(store.get(&object).await.unwrap() == content);
    let middle = store.get_range(&object, 5_000_000..19_000_000).await.unwrap();
    assert!(middle == content.slice(5_000_000..19_000_000));
    let other = store.put("modules/a", content.slice(1..)).await.unwrap_err();
    assert!(matches!(other, StoreError::Exists { .. }), "{other}");
}

#[test]
fn a_run_has_the_same_bits_and_its_workers_read_straight_from_the_store() {
    let server = Azurite::start();
    let run = untrained().with_environment(server.environment());
    std::fs::remove_dir_all(run.file("store")).unwrap();
    let _ = run.dipaco(&format!("seed --set run.store=az://{BUCKET}/run")).succeeded();
    let summary = run.train("--workers 2 --json").finish().succeeded().json();
    assert_eq!(run.bits(), undisturbed());
    assert!(summary["bytes_linked"].as_u64() > Some(500_000), "{summary}");
    let _ = run.dipaco("evaluate").succeeded();
    assert!(!run.file("store").exists(), "the run has a local store");
}
