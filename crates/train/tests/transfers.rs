//! Runs whose modules and states are longer than a piece.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_protocol::PIECE_BYTES;

use support::{Run, config};

/// A run with two pieces a module and seven a state.
async fn large() -> Run {
    let mut config = config();
    (config.model.hidden_size, config.model.ffn_size) = (256, 1024);
    (config.train.rounds, config.train.inner_steps) = (1, 1);
    let run = Run::seeded(config).await;
    let started = run.start(false).await.unwrap();
    let training = started.manifest.training.unwrap();
    let fragments = training.modules.iter().flat_map(|module| &module.fragments);
    assert!(fragments.map(|fragment| fragment.weights.bytes).all(|bytes| bytes > PIECE_BYTES));
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modules_in_pieces_give_the_same_bits_for_any_workers_and_after_stops() {
    let undisturbed = large().await;
    undisturbed.train(1).await;
    let run = large().await;
    run.train_with_stops(3..).await;
    assert_eq!(run.bits().await, undisturbed.bits().await);
}
