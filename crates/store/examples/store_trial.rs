//! Tries a store with many writers at once, and with a large object (`scripts/check-stores.py`).
//!
//! ```text
//! store_trial race ADDRESS WRITERS ROUNDS
//! store_trial large ADDRESS MEBIBYTES
//! ```
//!
//! `race`: in each round all writers replace the same manifest, and then create an object of the same name with contents
//! of their own. Each writer has connections of its own. Prints how many rounds had how many winners.
//! `large`: writes an object and reads it back. Prints the seconds of both.
//! Credentials come from the environment, as for the program. Prints one line of JSON.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use dipaco_store::{ManifestSchema, ManifestSequence, RunStore, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// A manifest that is the same for all writers: only the store's record of the writer tells them apart.
#[derive(Serialize, Deserialize)]
struct Rounds {
    round: u64,
}

impl ManifestSchema for Rounds {
    const SCHEMA: &'static str = "store-trial";
    const VERSION: u32 = 1;
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let found = match words.as_slice() {
        ["race", address, writers, rounds] => race(address, writers.parse()?, rounds.parse()?).await?,
        ["large", address, mebibytes] => large(address, mebibytes.parse()?).await?,
        _ => {
            return Err(
                "store_trial race ADDRESS WRITERS ROUNDS, or store_trial large ADDRESS MEBIBYTES".into()
            );
        }
    };
    println!("{found}");
    Ok(())
}

/// Number of rounds by their number of winners.
type Winners = BTreeMap<usize, u64>;

async fn race(address: &str, writers: usize, rounds: u64) -> Result<serde_json::Value, Failure> {
    let stores = (0..writers).map(|_| RunStore::create(address)).collect::<Result<Vec<_>, _>>()?;
    let (mut manifests, mut objects) = (Winners::new(), Winners::new());
    for round in 0..rounds {
        let start = Arc::new(Barrier::new(writers));
        let (mut replaces, mut creates) = (JoinSet::new(), JoinSet::new());
        for (writer, store) in stores.iter().cloned().enumerate() {
            let (start, other) = (start.clone(), store.clone());
            replaces.spawn(async move {
                start.wait().await;
                store.replace(&Rounds { round }, ManifestSequence(round)).await.map(|_| ())
            });
            let name = format!("objects/{round}");
            creates.spawn(async move { other.put(&name, vec![0; writer + 1].into()).await.map(|_| ()) });
        }
        *manifests.entry(won(replaces).await?).or_default() += 1;
        *objects.entry(won(creates).await?).or_default() += 1;
    }
    let last = stores[0].load::<Rounds>().await?.map(|loaded| loaded.sequence.0);
    Ok(serde_json::json!({
        "writers": writers, "rounds": rounds, "manifest_winners": manifests, "object_winners": objects, "last_manifest": last
    }))
}

/// The number of writers that succeeded. The others must have met another writer.
async fn won(mut writers: JoinSet<Result<(), StoreError>>) -> Result<usize, Failure> {
    let mut winners = 0;
    while let Some(writer) = writers.join_next().await {
        match writer? {
            Ok(()) => winners += 1,
            Err(StoreError::Conflict { .. } | StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(winners)
}

async fn large(address: &str, mebibytes: usize) -> Result<serde_json::Value, Failure> {
    let store = RunStore::create(address)?;
    let content: Vec<u8> =
        (0..mebibytes << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let begun = Instant::now();
    let object = store.put("objects/large", content.into()).await?;
    let written = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    // Verifies length and hash.
    let read = store.get(&object).await?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(serde_json::json!({ "bytes": read.len(), "write_seconds": written, "read_seconds": seconds }))
}
