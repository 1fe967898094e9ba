//! The guard of a coordinator: it learns from the outer gradients that count, and a restart forgets none.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_protocol::{LeaseResult, Response};
use dipaco_telemetry::Events;
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guard_remembers_what_counts_across_a_restart() {
    let mut config = config();
    config.outer.guard = 10.0;
    let run = Run::seeded(config).await;
    let stop = CancellationToken::new();
    let (coordinator, token) = run.coordinator(Events::off(), stop.clone()).await;
    let lender = run.token_of("lender", &token);
    let puppet = Puppet::welcome(&lender, "puppet").await;
    // Two rounds of four paths: four outer gradients of each module.
    for _ in 0..8 {
        let work = puppet.lease().await;
        puppet.carry_out(&run, &work, 0.5).await;
    }
    stop.cancel();
    drop(puppet);
    coordinator.await.unwrap().unwrap();

    let training = run.manifest().await.training.unwrap();
    let contributions: Vec<_> = training.contributions_of("lender").map(|(path, of)| (path.0, of)).collect();
    assert_eq!(contributions.len(), 4, "each path was trained with this token");
    for (_, of) in &contributions {
        assert_eq!((of.gradients, of.first_step, of.last_step), (4, 4, 8));
    }
    assert_eq!(training.contributions_of("test").count(), 0);

    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    let work = puppet.lease().await;
    let send = work.sends[0];
    let values = run.values_of(send.fragment);
    let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
    let broken = puppet.submit_gradient(&work, item, (values, 5.1)).await;
    assert!(matches!(&broken, Response::Refused { reason } if reason.contains("outer.guard")), "{broken:?}");
    // A refused outer gradient leaves no trace: the worker may send a sound one.
    assert_eq!(puppet.submit_gradient(&work, item, (values, 4.9)).await, Response::Done);
    puppet.ask(&dipaco_protocol::Request::Release, None).await.unwrap();
    drop(puppet);
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_outer_step_is_guarded_by_a_comparison_of_its_paths() {
    let mut config = config();
    config.outer.guard = 2.0;
    config.train.rounds = 1;
    let mut weights = Vec::new();
    // One of two paths contributes twice, and a million times, as much as the other.
    for liar in [1.0, 5e5] {
        let run = Run::seeded(config.clone()).await;
        let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
        let puppet = Puppet::welcome(&token, "puppet").await;
        for value in [0.5, liar, liar, 0.5] {
            let work = puppet.lease().await;
            puppet.carry_out(&run, &work, value).await;
        }
        drop(puppet);
        let worker = run.spawn_worker(&token, "honest");
        assert!(coordinator.await.unwrap().unwrap().finished);
        worker.await.unwrap().unwrap();
        let training = run.manifest().await.training.unwrap();
        let module = &training.modules[0].fragments[0].weights;
        weights.push(run.store.get(module).await.unwrap());
    }
    let values = |at: usize| {
        let start = 8 + usize::try_from(u64::from_le_bytes(weights[at][..8].try_into().unwrap())).unwrap();
        weights[at][start..]
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect::<Vec<_>>()
    };
    let differ = values(0).iter().zip(&values(1)).any(|(a, b)| (a - b).abs() > 1e-4);
    assert!(!differ, "the larger outer gradient counts twice as much as the other, and no more");
}
