//! Runs whose modules and states are longer than a piece.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_protocol::PIECE_BYTES;

use dipaco_train::{coordinate, work};
use tokio_util::sync::CancellationToken;

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
    let (mut server, token) = run.server().await;
    let address = server.local_addr();
    let leave = CancellationToken::new();
    let workers = ["a", "b"].map(|name| tokio::spawn(work(run.worker(&token, name), leave.clone())));
    for events in 3.. {
        let started = run.start(true).await.unwrap();
        let stop = CancellationToken::new();
        let events = run.events_until(events, &stop);
        if coordinate(run.options(started, events), server, stop).await.unwrap().finished {
            break;
        }
        (server, _) = run.server_at(address).await;
    }
    leave.cancel();
    for worker in workers {
        worker.await.unwrap().unwrap();
    }
    assert_eq!(run.bits().await, undisturbed.bits().await);
}
