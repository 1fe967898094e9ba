//! What the tests of remote stores share: a run store at a server, a race of its writers, and a long content.

use bytes::Bytes;
use dipaco_store::{ManifestSchema, ManifestSequence, RunStore, StoreError, StoreOptions};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Rounds {
    round: u64,
}

impl ManifestSchema for Rounds {
    const SCHEMA: &'static str = "rounds";
    const VERSION: u32 = 1;
}

/// Opens a run's store at `address`, with the environment of a process that uses it.
pub(crate) fn open(address: &str, environment: Vec<(String, String)>) -> RunStore {
    let settings = environment.into_iter().map(|(name, value)| (name.to_lowercase(), value));
    let options = StoreOptions { durable: true, settings: settings.collect() };
    RunStore::create_with(address, &options).unwrap()
}

/// Lets many writers replace the manifest of an empty store at the same time. Exactly one wins each of several times.
pub(crate) async fn race_of_writers(store: &RunStore) {
    for expected in 0..5 {
        // All writers write the same manifest: only the writers tell them apart.
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
                Err(error) => panic!("{}: {error}", store.address()),
            }
        }
        assert_eq!(winners, 1, "{}", store.address());
    }
    let loaded = store.load::<Rounds>().await.unwrap().unwrap();
    assert_eq!((loaded.manifest.round, loaded.sequence), (1, ManifestSequence(5)));
}

/// Bytes that travel in several parts. No two stretches of them are alike.
pub(crate) fn long_content() -> Bytes {
    (0..20_000_003_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
