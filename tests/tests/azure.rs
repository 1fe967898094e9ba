//! A run in Azure Blob Storage, over Azurite: the same promises as in a folder and on S3. `scripts/check-azure.sh` runs them.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use dipaco_store::{ManifestSchema, ManifestSequence, RunStore, StoreError, StoreOptions};
use dipaco_tests::azurite::Azurite;
use dipaco_tests::object_store::BUCKET;
use dipaco_tests::training::{undisturbed, untrained};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rounds {
    round: u64,
}

impl ManifestSchema for Rounds {
    const SCHEMA: &'static str = "rounds";
    const VERSION: u32 = 1;
}

fn store(server: &Azurite) -> RunStore {
    let settings = server.environment().into_iter().map(|(name, value)| (name.to_lowercase(), value));
    let options = StoreOptions { durable: true, settings: settings.collect() };
    RunStore::create_with(&format!("az://{BUCKET}/store"), &options).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_many_writers_wins() {
    let server = Azurite::start();
    let store = store(&server);
    store.check_writable().await.unwrap();
    for expected in 0..5 {
        let writers = (0..6).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.replace(&Rounds { round: 1 }, ManifestSequence(expected)).await })
        });
        let mut winners = 0;
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                Ok(sequence) => {
                    assert_eq!(sequence, ManifestSequence(expected + 1));
                    winners += 1;
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test]
async fn large_objects_arrive_whole_and_are_never_replaced() {
    let server = Azurite::start();
    let store = store(&server);
    let content: Bytes = (0..20_000_003_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
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
