//! Whole runs over loopback: the result does not depend on the number and the timing of workers.
#![allow(clippy::unwrap_used)]

mod support;

use dipaco_codec::Compression;
use dipaco_config::RunConfig;
use dipaco_model::Dtype;
use dipaco_path::PathData;
use dipaco_protocol::WorkerPlan;
use dipaco_shards::{TokenFileWriter, TokenSet, TokenSetManifest};
use dipaco_sync::{EmbeddingMean, SyncConfig, Weighting};
use dipaco_telemetry::Events;
use dipaco_topology::{PathId, TopologyConfig};
use dipaco_train::{WorkerOptions, work};
use support::{Run, config, tokens};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_and_four_workers_give_the_same_bits() {
    let one = Run::seeded(config()).await;
    let (summary, workers) = one.train(1).await;
    assert!(summary.finished);
    assert_eq!(summary.rounds, 3);
    assert_eq!(workers[0].leases, 4 * 3);
    let bits = one.bits().await;
    for count in [2, 4] {
        let run = Run::seeded(config()).await;
        let (_, workers) = run.train(count).await;
        assert_eq!(workers.iter().map(|worker| worker.leases).sum::<u64>(), 4 * 3);
        assert_eq!(run.bits().await, bits, "{count} workers");
    }
}

/// Cuts each shard of a run into several token files with a list, as parts of `dipaco route assign` write them.
fn cut_shards(run: &mut Run) {
    let folder = run.folder.path();
    for shard in &mut run.shards {
        let whole = TokenSet::open(folder.join(&shard.file)).unwrap();
        let mut list = TokenSetManifest::new(whole.info());
        for (number, documents) in [0..7, 7..8, 8..whole.documents()].into_iter().enumerate() {
            let file = format!("cut/{number}-of-{}", shard.file);
            std::fs::create_dir_all(folder.join("cut")).unwrap();
            let mut writer = TokenFileWriter::create(folder.join(&file), whole.info().clone()).unwrap();
            documents.for_each(|at| writer.push_document(&whole.document(at).to_vec()).unwrap());
            let hash = writer.finish().unwrap().content_hash;
            list.push(folder, file, &hash).unwrap();
        }
        std::fs::remove_file(folder.join(&shard.file)).unwrap();
        (shard.file, shard.hash) = (shard.file.replace(".h5", ".json"), list.content_hash());
        list.publish(&folder.join(&shard.file)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_in_several_files_are_fetched_and_give_the_same_bits() {
    let whole = Run::seeded(config()).await;
    whole.train(1).await;
    let mut cut = Run::seeded(config()).await;
    cut_shards(&mut cut);
    let (summary, _) = cut.train(2).await;
    assert!(summary.finished);
    assert_eq!(cut.weights().await, whole.weights().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compression_changes_the_weights_and_the_number_of_workers_does_not() {
    let mut seen = vec![Run::seeded(config()).await];
    seen[0].train(1).await;
    for compression in [Compression::Bf16, Compression::Int8, Compression::E3m0] {
        let mut config = config();
        config.outer.compression = compression;
        let (one, two) = (Run::seeded(config.clone()).await, Run::seeded(config).await);
        one.train(1).await;
        two.train(2).await;
        assert_eq!(one.bits().await, two.bits().await, "{compression:?}");
        for other in &seen {
            assert_ne!(one.bits().await, other.bits().await, "{compression:?}");
        }
        seen.push(one);
    }
}

/// The test configuration with two fragments a module, which are sent during training.
fn streaming(overlap_steps: u64, blend: f32) -> RunConfig {
    let mut config = config();
    config.train.inner_steps = 4;
    config.sync = SyncConfig { fragments: 2, overlap_steps, blend, ..SyncConfig::default() };
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streaming_gives_the_same_bits_for_any_workers() {
    let mut seen = Vec::new();
    for config in
        [streaming(0, 0.0), streaming(1, 0.0), streaming(1, 0.5), streaming(3, 0.5), streaming(4, 0.0)]
    {
        let (one, three) = (Run::seeded(config.clone()).await, Run::seeded(config.clone()).await);
        let (summary, _) = one.train(1).await;
        assert!(summary.finished && summary.rounds == 3);
        let (_, workers) = three.train(3).await;
        // The results of a lease wait for the preceding lease, and none is refused.
        assert!(workers.iter().all(|worker| worker.lost == 0), "{workers:?}");
        let bits = one.bits().await;
        assert_eq!(three.bits().await, bits, "{:?}", config.sync);
        assert!(!seen.contains(&bits), "{:?}", config.sync);
        seen.push(bits);
        let training = one.manifest().await.training.unwrap();
        let gradients = config.sync.schedule(config.run.seed, 4, [3]).unwrap();
        for fragment in training.modules.iter().flat_map(|m| m.fragments.iter().enumerate()) {
            let sends = gradients.sent_through(u32::try_from(fragment.0).unwrap(), 12);
            assert_eq!(u64::from(fragment.1.version), sends);
        }
    }
}

/// The weights of a run, and the bytes that its workers and its coordinator exchanged.
async fn weights_and_bytes(config: RunConfig, workers: usize) -> (Vec<String>, u64) {
    let run = Run::seeded(config).await;
    let (summary, _) = run.train(workers).await;
    (run.weights().await, summary.bytes_sent + summary.bytes_received)
}

/// Trains with a worker that is started anew during the run. It has lost the states of all paths, and trains the steps since
/// their last stored states again.
async fn weights_after_a_restart(config: RunConfig) -> Vec<String> {
    let run = Run::seeded(config).await;
    let begun = CancellationToken::new();
    let (coordinator, token) = run.coordinator(run.events_until(6, &begun), CancellationToken::new()).await;
    let leave = CancellationToken::new();
    let first = tokio::spawn(work(run.worker(&token, "a"), leave.clone()));
    begun.cancelled().await;
    leave.cancel();
    let before = first.await.unwrap().unwrap().leases;
    let second = run.spawn_worker(&token, "a");
    assert!(coordinator.await.unwrap().unwrap().finished);
    let after = second.await.unwrap().unwrap().leases;
    assert!(before > 0 && after > 0, "{before} leases before, {after} after");
    run.weights().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_stay_with_workers_change_only_the_traffic() {
    for config in [config(), streaming(1, 0.5)] {
        let (often, all_bytes) = weights_and_bytes(config.clone(), 2).await;
        let mut config = config;
        config.train.state_every = 100;
        // Workers with more paths than states upload each state.
        config.train.held_paths = 1;
        let (crowded, _) = weights_and_bytes(config.clone(), 2).await;
        assert_eq!(often, crowded);
        config.train.held_paths = 4;
        assert_eq!(often, weights_after_a_restart(config.clone()).await);
        let (held, few_bytes) = weights_and_bytes(config, 1).await;
        assert_eq!(often, held);
        assert!(few_bytes * 2 < all_bytes, "{few_bytes} of {all_bytes}");
    }
}

/// A single path stays in the memory of its worker, so only there a lease can begin with a state that was never in a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moments_in_bf16_give_the_same_bits_wherever_their_states_lie() {
    let mut single = config();
    single.topology = TopologyConfig::dense(single.model.blocks);
    for mut config in [config(), streaming(1, 0.5), single] {
        let (exact, f32_bytes) = weights_and_bytes(config.clone(), 1).await;
        config.train.state_dtype = Dtype::Bf16;
        // Each lease uploads its state, and the worker keeps it.
        let (kept, bytes) = weights_and_bytes(config.clone(), 1).await;
        assert_ne!(kept, exact);
        assert!(bytes < f32_bytes - f32_bytes / 10, "{bytes} of {f32_bytes}");
        assert_eq!(kept, weights_and_bytes(config.clone(), 2).await.0);
        // The second worker begins with the stored states.
        assert_eq!(kept, weights_after_a_restart(config.clone()).await);
        // It repeats the steps since the start.
        (config.train.state_every, config.train.held_paths) = (100, 4);
        assert_eq!(kept, weights_after_a_restart(config).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounded_changes_and_fetched_weights_give_the_same_bits() {
    let mut config = config();
    config.outer.broadcast = Compression::E3m0;
    config.train.state_every = 100;
    config.train.held_paths = 4;
    // A single worker holds all weights and gets changes. Each of two workers holds some weights.
    let (one, few_bytes) = weights_and_bytes(config.clone(), 1).await;
    let (two, _) = weights_and_bytes(config.clone(), 2).await;
    assert_eq!(one, two);
    config.outer.broadcast = Compression::F32;
    let (exact, all_bytes) = weights_and_bytes(config, 1).await;
    assert_ne!(one, exact);
    assert!(few_bytes * 10 < all_bytes * 9, "{few_bytes} of {all_bytes}");
}

/// The weights of a run and the bytes that its coordinator sent, after its training with one worker.
async fn weights_and_bytes_sent(
    config: RunConfig,
    change: impl FnOnce(&mut WorkerOptions),
) -> (Vec<String>, u64) {
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    // Not sent over the wire, so that weights are most of the bytes.
    let shards = Some(run.folder.path().to_owned());
    let mut options = WorkerOptions { shards, ..run.worker(&token, "w") };
    change(&mut options);
    work(options, CancellationToken::new()).await.unwrap();
    (run.weights().await, coordinator.await.unwrap().unwrap().bytes_sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_without_room_in_memory_lie_on_the_disk_and_are_not_fetched_again() {
    let mut config = config();
    config.train.state_every = 100;
    config.train.held_paths = 4;
    for broadcast in [Compression::F32, Compression::E3m0] {
        config.outer.broadcast = broadcast;
        let (expected, in_memory) = weights_and_bytes_sent(config.clone(), |_| {}).await;
        let (weights, on_disk) =
            weights_and_bytes_sent(config.clone(), |options| options.weights_in_memory = 0).await;
        assert_eq!(weights, expected);
        let without_disk = |options: &mut WorkerOptions| {
            options.weights_in_memory = 0;
            options.cache = "/proc/nothing".into();
        };
        let (weights, dropped) = weights_and_bytes_sent(config.clone(), without_disk).await;
        assert_eq!(weights, expected);
        // Messages are the same, but for a few bytes of timing.
        assert!(on_disk < in_memory + in_memory / 50, "{on_disk} against {in_memory}");
        assert!(dropped > on_disk + on_disk / 10, "{dropped} against {on_disk}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_takes_outer_steps_with_its_own_learning_rate() {
    let run = |rates: Vec<f64>| async move {
        let mut config = config();
        config.train.rounds = 1;
        config.outer.level_learning_rates = rates;
        weights_and_bytes(config, 1).await.0
    };
    let common = run(vec![]).await;
    assert_eq!(run(vec![0.7, 0.7]).await, common);
    // The first level has the first half of the modules.
    let slow = run(vec![0.7, 0.1]).await;
    let (first, second) = common.split_at(common.len() / 2);
    assert_eq!(&slow[..first.len()], first);
    assert!(slow[first.len()..].iter().zip(second).all(|(slow, common)| slow != common));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_the_embedding_count_the_paths_that_touched_them() {
    let mut all = config();
    all.train.rounds = 1;
    // A sequence of 16 tokens cannot touch all 40 rows.
    all.train.inner_steps = 1;
    all.train.batch = 1;
    all.model.embedding_decay = false;
    let mut touched = all.clone();
    touched.outer.embedding_mean = EmbeddingMean::Touched;
    let (all, _) = weights_and_bytes(all, 1).await;
    let (one, _) = weights_and_bytes(touched.clone(), 1).await;
    assert_eq!(weights_and_bytes(touched, 3).await.0, one);
    // The embedding is in the first level.
    let (first, second) = one.split_at(one.len() / 2);
    assert_eq!(second, &all[first.len()..]);
    assert!(first.iter().zip(&all).all(|(touched, all)| touched != all));
}

/// The states of paths' fragments give the same bits if one worker holds them all, if workers upload them, and if workers
/// train again the paths whose states they do not hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_a_fragment_moves_with_its_path() {
    let sparse = |mut config: RunConfig| {
        config.outer.compression = Compression::TopK;
        config.outer.error_feedback = 0.95;
        config
    };
    let eager = |mut config: RunConfig| {
        config.sync.eager = true;
        config
    };
    let dropping = |mut config: RunConfig| {
        config.sync.drop_rate = 0.4;
        config
    };
    let delayed = || streaming(4, 0.0);
    let mut seen = vec![weights_and_bytes(delayed(), 1).await.0];
    for config in [sparse(config()), eager(delayed()), sparse(eager(delayed())), dropping(streaming(1, 0.5))]
    {
        let (one, _) = weights_and_bytes(config.clone(), 1).await;
        assert!(!seen.contains(&one), "{:?} {:?}", config.sync, config.outer);
        let (three, _) = weights_and_bytes(config.clone(), 3).await;
        assert_eq!(one, three, "{:?} {:?}", config.sync, config.outer);
        let mut config = config;
        config.train.state_every = 100;
        config.train.held_paths = 4;
        let again = weights_after_a_restart(config.clone()).await;
        assert_eq!(one, again, "{:?} {:?}", config.sync, config.outer);
        seen.push(one);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_stay_with_workers_stay_there_when_the_run_ends() {
    let mut config = config();
    config.train.state_every = 2;
    config.train.held_paths = 4;
    let run = Run::seeded(config).await;
    run.train(2).await;
    let training = run.manifest().await.training.unwrap();
    assert!(
        training.paths.iter().all(|path| path.measured && path.state.is_none() && path.replay.is_empty())
    );
    assert_eq!(run.store.list("paths").await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_disk_takes_no_state_keeps_and_uploads_states_from_memory() {
    let mut config = config();
    (config.train.state_every, config.train.held_paths) = (2, 4);
    let (expected, _) = weights_and_bytes(config.clone(), 1).await;
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let cache = "/proc/nothing".into();
    let shards = Some(run.folder.path().to_owned());
    let options = WorkerOptions { shards, cache, ..run.worker(&token, "w") };
    assert_eq!(work(options, CancellationToken::new()).await.unwrap().leases, 4 * 3);
    assert!(coordinator.await.unwrap().unwrap().finished);
    assert_eq!(run.weights().await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joining_worker_takes_paths_over_from_a_worker_that_holds_all_states() {
    let mut config = config();
    config.train.state_every = 1000;
    config.train.held_paths = 4;
    config.train.rounds = 60;
    let (alone, _) = weights_and_bytes(config.clone(), 1).await;
    let run = Run::seeded(config).await;
    let begun = CancellationToken::new();
    let (coordinator, token) = run.coordinator(run.events_until(8, &begun), CancellationToken::new()).await;
    let first = run.spawn_worker(&token, "first");
    begun.cancelled().await;
    let late = run.spawn_worker(&token, "late");
    assert!(coordinator.await.unwrap().unwrap().finished);
    let leases = [first.await.unwrap().unwrap().leases, late.await.unwrap().unwrap().leases];
    assert!(leases[1] > 0 && leases[0] + leases[1] == 4 * 60, "{leases:?}");
    assert_eq!(run.weights().await, alone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_common_start_of_modules_is_fetched_once() {
    let mut config = config();
    config.train.state_every = 100;
    config.train.held_paths = 4;
    config.train.rounds = 1;
    // Messages are small compared with the weights.
    (config.model.hidden_size, config.model.head_dim, config.model.ffn_size) = (64, 32, 192);
    let run = Run::seeded(config).await;
    let (summary, _) = run.train(1).await;
    let training = run.manifest().await.training.unwrap();
    let bytes = |level: u16| {
        let fragments = training.modules.iter().filter(|module| module.module.level == level);
        fragments.flat_map(|module| &module.fragments).map(|fragment| fragment.weights.bytes).sum::<u64>()
    };
    let shards = run.shards.iter().map(|shard| run.folder.path().join(&shard.file).metadata().unwrap().len());
    // The final weights of its four paths, and once the common start of the modules of a level.
    let weights = bytes(0) + bytes(1) + bytes(0) / 2 + bytes(1) / 2;
    let sent = summary.bytes_sent - shards.sum::<u64>();
    assert!(sent > weights && sent < weights + bytes(0) / 2, "{sent} for {weights}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_sends_do_not_go_over_the_wire() {
    let mut config = config();
    config.train.state_every = 100;
    config.train.held_paths = 4;
    config.outer.broadcast = Compression::E3m0;
    let (_, all) = weights_and_bytes(config.clone(), 1).await;
    config.outer.compression = Compression::TopK;
    let (_, few) = weights_and_bytes(config.clone(), 1).await;
    assert!(few < all, "{few} of {all}");
    config.outer.compression = Compression::F32;
    config.sync.drop_rate = 0.9;
    let (_, dropped) = weights_and_bytes(config, 1).await;
    assert!(dropped < all, "{dropped} of {all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_quorum_no_path_waits_and_every_step_counts() {
    for (dynamic_steps, overlap_steps, fragments, delay) in
        [(true, 0, 1, 2), (false, 0, 1, 0), (false, 1, 2, 0)]
    {
        let mut config = streaming(overlap_steps, 0.0);
        config.sync = SyncConfig { quorum: 1, grace_seconds: 0.01, dynamic_steps, fragments, ..config.sync };
        // Half of the cases draw paths by the size of their shards and weight contributions by their tokens.
        config.sync.shard_sampling = delay == 0;
        config.outer.weighting = if delay == 0 { Weighting::Tokens } else { Weighting::ShardSize };
        config.outer.delay = delay;
        let run = Run::seeded(config).await;
        let (summary, _) = run.train(2).await;
        assert!(summary.finished && summary.rounds == 3);
        let training = run.manifest().await.training.unwrap();
        assert!(training.paths.iter().all(|path| path.steps == 12 && path.gradients.is_empty()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_run_keeps_current_versions_and_the_bests_of_paths() {
    let run = Run::seeded(config()).await;
    run.train(2).await;
    let manifest = run.manifest().await;
    let training = manifest.training.unwrap();
    for path in &training.paths {
        assert!(path.measured && path.gradients.is_empty());
        let best = path.best.as_ref().unwrap();
        assert!(best.loss.is_finite() && best.round <= 3 && best.versions == [best.round; 2]);
    }
    // Only objects that the manifest names are left in the store.
    let mut named: Vec<String> = training
        .modules
        .iter()
        .flat_map(|module| &module.fragments)
        .flat_map(|module| {
            let kept = module.kept.iter().map(|kept| kept.weights.name.clone());
            kept.chain([module.weights.name.clone(), module.momentum.clone().unwrap().name])
        })
        .chain(training.paths.iter().map(|path| path.state.clone().unwrap().name))
        .collect();
    named.sort();
    let mut stored = Vec::new();
    for prefix in ["modules", "momenta", "paths", "outer-gradients"] {
        stored.extend(run.store.list(prefix).await.unwrap().into_iter().map(|object| object.name));
    }
    stored.sort();
    assert_eq!(stored, named);
}

#[test]
fn a_shard_of_one_document_is_trained_on_with_nothing_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let plan = WorkerPlan::new(&config());
    let one = tokens(&folder.path().join("one.h5"), 0, 1);
    let open = |name: &str, hash: &str, path| {
        PathData::new(TokenSet::open(folder.path().join(name)).unwrap(), hash, path, &plan)
    };
    assert!(open("one.h5", one.content_hash(), PathId(0)).is_ok());
    assert!(matches!(
        open("one.h5", "another hash", PathId(0)),
        Err(dipaco_path::PathError::WrongShard { .. })
    ));
    let none = tokens(&folder.path().join("none.h5"), 0, 0);
    assert!(matches!(
        open("none.h5", none.content_hash(), PathId(3)),
        Err(dipaco_path::PathError::EmptyShard { path: PathId(3) })
    ));
}
