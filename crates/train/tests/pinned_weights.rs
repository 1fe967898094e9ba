//! Readers beside a training.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, SystemTime};

use dipaco_store::{ObjectRef, StoreError};

use support::{Run, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_weights_outlive_their_outer_steps_and_others_do_not() {
    let run = Run::seeded(config()).await;
    run.start(false).await.unwrap();
    let training = run.manifest().await.training.unwrap();
    let weights = |level| -> Vec<ObjectRef> {
        let modules = training.modules.iter().filter(|record| record.module.level == level);
        modules.flat_map(|record| &record.fragments).map(|fragment| fragment.weights.clone()).collect()
    };
    let (pinned, other) = (weights(0), weights(1));
    let names = pinned.iter().map(|object| object.name.clone()).collect();
    run.store.pin("reader", names, SystemTime::now() + Duration::from_secs(3600)).await.unwrap();
    run.train(1).await;
    for object in &pinned {
        run.store.get(object).await.unwrap();
    }
    for object in &other {
        assert!(matches!(run.store.get(object).await, Err(StoreError::Missing { .. })), "{}", object.name);
    }
}
