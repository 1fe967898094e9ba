//! One of four paths of a module lies within the guard. Merges that compare contributions withstand it.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_sync::Merge;
use dipaco_telemetry::Events;
use dipaco_topology::TopologyConfig;
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

/// The weights of the module of a run of four paths after one outer step, when these are the values of the outer
/// gradients. One puppet trains all paths, in turn.
async fn weights(merge: Merge, gradients: [f32; 4]) -> Vec<f32> {
    let mut config = config();
    config.outer.merge = merge;
    config.train.rounds = 1;
    config.topology = TopologyConfig { replicas: 4, ..TopologyConfig::dense(config.model.blocks) };
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let puppet = Puppet::welcome(&token, "puppet").await;
    for _ in 0..4 {
        let work = puppet.lease().await;
        puppet.carry_out(&run, &work, gradients[work.path.index()]).await;
    }
    drop(puppet);
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    let training = run.manifest().await.training.unwrap();
    let bytes = run.store.get(&training.modules[0].fragments[0].weights).await.unwrap();
    let start = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The largest difference of two weights.
fn apart(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_liar_within_the_guard_moves_a_robust_merge_no_further_than_the_others() {
    // Forty times the norm of the others, in the opposite direction: `outer.guard` is 100.
    let (honest, lying) = ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, -4.0, 0.1]);
    let calm = weights(Merge::Mean, honest).await;
    let step = {
        let larger = weights(Merge::Mean, [0.2; 4]).await;
        apart(&calm, &larger)
    };
    assert!(step > 0.1, "{step}");
    for merge in [Merge::Clipped, Merge::Trimmed] {
        assert!(apart(&calm, &weights(merge, honest).await) < 1e-5, "{merge:?}: the cost without a liar");
    }
    let mean = apart(&calm, &weights(Merge::Mean, lying).await);
    assert!(mean > 5.0 * step, "{mean} {step}");
    let clipped = apart(&calm, &weights(Merge::Clipped, lying).await);
    assert!(clipped < step, "{clipped} {step}");
    let trimmed = apart(&calm, &weights(Merge::Trimmed, lying).await);
    assert!(trimmed < 1e-5, "{trimmed}");
}
