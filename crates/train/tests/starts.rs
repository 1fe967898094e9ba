//! The seed, the start of training, and configurations that equal other ways of training.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_model::{ModelError, ModuleWeights, OpsError, path_specs, split};
use dipaco_optim::Optimizer;
use dipaco_path::{
    GlobalFragment, InnerConfig, LeaseTraining, LeaseWatch, MomentSpecs, PathData, PathError, PathState,
    PathWeights, TrainDevice, TrainedLease, Trainer, TrainerMemory, train_lease,
};
use dipaco_protocol::WorkerPlan;
use dipaco_routing::is_router_document;
use dipaco_shards::{ShardsError, TokenFileInfo, TokenFileWriter, TokenSet};
use dipaco_store::RunStore;
use dipaco_sync::{FragmentId, ScheduledSend};
use dipaco_telemetry::{Events, Progress};
use dipaco_topology::{LevelConfig, ModuleId, Modules, PathId, TopologyConfig};
use dipaco_train::{
    CoordinatorError, LedgerError, SeedError, SeedOptions, SeedSummary, open_run, train_seed,
};
use tokio_util::sync::CancellationToken;

use support::{Run, config, tokens};

fn store_in(folder: &std::path::Path) -> RunStore {
    RunStore::create(&folder.join("store").to_string_lossy()).unwrap()
}

/// Trains the seed in a store in its own folder until it is complete or `stop` is triggered.
async fn seed(
    folder: &std::path::Path,
    config: RunConfig,
    train: Arc<TokenSet>,
    stop: Option<(Events, CancellationToken)>,
) -> Result<SeedSummary, SeedError> {
    let store = store_in(folder);
    let started = open_run(&store, || "test-run".to_owned()).await?;
    let cancel = Arc::new(AtomicBool::new(false));
    let events = match stop {
        Some((events, reached)) => {
            let cancel = cancel.clone();
            tokio::spawn(async move {
                reached.cancelled().await;
                cancel.store(true, Ordering::Relaxed);
            });
            events
        }
        None => Events::off(),
    };
    let options =
        SeedOptions { config, store, train, validation: None, restart: false, device: TrainDevice::Cpu };
    Ok(train_seed(options, started, Arc::new(events), &Progress::hidden(), cancel).await?.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_seed_goes_on_to_the_same_weights() {
    let run = Run::seeded(config()).await;
    let whole = run.manifest().await.seed.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let train = tokens(&run.folder.path().join("train.h5"), 0, 60);
    let reached = CancellationToken::new();
    let first =
        seed(folder.path(), config(), train.clone(), Some((run.events_until(0, &reached), reached))).await;
    let first = first.unwrap();
    let last = seed(folder.path(), config(), train.clone(), None).await.unwrap();
    assert!(last.finished && first.step + last.new_steps == 4);
    let store = store_in(folder.path());
    let continued = open_run(&store, String::new).await.unwrap().manifest.seed.unwrap();
    assert_eq!(continued.weights.hash, whole.weights.hash);
    assert_eq!(continued.state.unwrap().hash, whole.state.unwrap().hash);

    let mut other = config();
    other.seed_model.adamw.learning_rate *= 2.0;
    let error = seed(folder.path(), other, train, None).await.unwrap_err();
    assert!(matches!(error, SeedError::OtherSeed), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_is_validated_as_often_as_configured_and_at_the_end() {
    for (every, steps) in [(3, vec![3, 4]), (2, vec![2, 4]), (0, vec![4])] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config();
        config.seed_model.validate_every = every;
        let store = store_in(folder.path());
        let started = open_run(&store, || "test-run".to_owned()).await.unwrap();
        let train = tokens(&folder.path().join("train.h5"), 0, 60);
        let validation = Some(tokens(&folder.path().join("validation.h5"), 0, 10));
        let options =
            SeedOptions { config, store, train, validation, restart: false, device: TrainDevice::Cpu };
        let log = folder.path().join("metrics.jsonl");
        let (events, never) = (Arc::new(Events::create(&log).unwrap()), Arc::new(AtomicBool::new(false)));
        let (summary, _) = train_seed(options, started, events, &Progress::hidden(), never).await.unwrap();
        let lines = std::fs::read_to_string(log).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let validated = lines.filter(|line| line["event"] == "seed_validated").collect::<Vec<_>>();
        let at = validated.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(at, steps);
        assert_eq!(validated.last().unwrap()["loss"].as_f64(), summary.validation_loss);
        // 7 of the 16 targets of a document's first sequence are read and not counted. The second sequence has 4 to 10
        // targets, of which 1, 2 and 3 count in three of the ten documents.
        let counted = validated.iter().map(|line| line["tokens"].as_u64().unwrap()).collect::<Vec<_>>();
        assert_eq!(counted, vec![10 * 9 + 1 + 2 + 3; steps.len()]);
    }
}

/// Hash of the seed's weights in the store of a folder.
async fn seed_weights(folder: &std::path::Path) -> String {
    let store = store_in(folder);
    open_run(&store, String::new).await.unwrap().manifest.seed.unwrap().weights.hash
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_seed_does_not_train_on_documents_that_are_reserved_for_routers() {
    let (with, without) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let all = tokens(&with.path().join("train.h5"), 0, 60);
    let mut reserving = config();
    reserving.routing.router_share = 0.3;
    seed(with.path(), reserving.clone(), all.clone(), None).await.unwrap();

    let rest = without.path().join("train.h5");
    let info = TokenFileInfo {
        tokenizer_hash: "test".into(),
        vocab_size: support::VOCABULARY,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&rest, info).unwrap();
    let documents = (0..all.documents()).map(|document| all.document(document).to_vec());
    let routing = &reserving.routing;
    let kept = documents.filter(|tokens| !is_router_document(tokens, routing.seed, routing.router_share));
    kept.for_each(|tokens| writer.push_document(&tokens).unwrap());
    writer.finish().unwrap();
    let rest = Arc::new(TokenSet::open(&rest).unwrap());
    assert!(rest.documents() < 60);
    seed(without.path(), config(), rest, None).await.unwrap();
    assert_eq!(seed_weights(with.path()).await, seed_weights(without.path()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seed_without_steps_is_its_initial_weights() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.seed_model.steps = 0;
    let train = tokens(&folder.path().join("train.h5"), 0, 60);
    let summary = seed(folder.path(), config.clone(), train.clone(), None).await.unwrap();
    assert!(summary.finished && summary.new_steps == 0);
    let store = store_in(folder.path());
    let record = open_run(&store, String::new).await.unwrap().manifest.seed.unwrap();
    let bytes = store.get(&record.weights).await.unwrap();
    let saved = ModuleWeights::from_safetensors(&bytes, path_specs(&config.model).into()).unwrap();
    assert_eq!(saved, dipaco_model::init(&config.model, config.run.seed).unwrap());
    assert!(seed(folder.path(), config, train, None).await.unwrap().finished);
}

#[tokio::test]
async fn a_run_starts_once_and_continues_only_with_its_own_configuration_and_shards() {
    let mut run = Run::seeded(config()).await;
    run.start(false).await.unwrap();
    assert!(matches!(run.start(false).await, Err(CoordinatorError::AlreadyStarted { rounds: 0, of: 3 })));
    run.start(true).await.unwrap();
    run.config.train.inner_steps += 1;
    assert!(matches!(run.start(true).await, Err(CoordinatorError::OtherTraining)));
    run.config.train.inner_steps -= 1;
    run.shards.swap(0, 1);
    assert!(matches!(run.start(true).await, Err(CoordinatorError::OtherTraining)));
}

#[tokio::test]
async fn a_path_without_documents_is_refused_at_the_start() {
    let mut run = Run::seeded(config()).await;
    run.shards[2].documents = 0;
    assert!(matches!(
        run.start(false).await,
        Err(CoordinatorError::Ledger(LedgerError::EmptyShard { path: PathId(2) }))
    ));
    run.shards.pop();
    assert!(matches!(
        run.start(false).await,
        Err(CoordinatorError::Ledger(LedgerError::ShardCount { shards: 3, paths: 4 }))
    ));
}

fn dense_level() -> LevelConfig {
    LevelConfig {
        modules: Modules::Count(1),
        blocks: "0..2".into(),
        embedding: true,
        head: true,
        frozen: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_path_with_a_plain_outer_step_is_plain_adamw() {
    let mut config = config();
    config.topology = TopologyConfig::grid(1, vec![dense_level()]);
    config.outer.nesterov.learning_rate = 1.0;
    config.outer.nesterov.momentum = 0.0;
    let run = Run::seeded(config.clone()).await;
    run.train(1).await;

    let specs: Arc<[_]> = path_specs(&config.model).into();
    let manifest = run.manifest().await;
    let start = run.store.get(&manifest.seed.unwrap().weights).await.unwrap();
    let start = ModuleWeights::from_safetensors(&start, specs.clone()).unwrap();
    let plan = WorkerPlan::new(&config);
    let topology = plan.topology().unwrap();
    let file = TokenSet::open(run.folder.path().join("path-000.h5")).unwrap();
    let hash = file.content_hash().to_owned();
    let data = PathData::new(file, &hash, PathId(0), &plan).unwrap();
    let mut state = PathState::start(&MomentSpecs::whole(&config.model, Optimizer::AdamW));
    // All three rounds as one.
    let modules = split(&config.model, &topology, &start).unwrap();
    let schedule = plan.schedule().unwrap();
    let fragment = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
    let global =
        GlobalFragment { fragment, values: Arc::new(modules[0].values.clone()), received: true, share: 1.0 };
    let weights = PathWeights::new(&plan, PathId(0), &[global], &mut state, true).unwrap();
    let last = ScheduledSend { fragment, step: 12, number: 1 };
    let round = LeaseTraining {
        device: &TrainDevice::Cpu,
        plan: &plan,
        path: PathId(0),
        data: &data,
        phase_step: 0,
        to: 12,
        sends: &[last],
        measures: true,
        memory: &TrainerMemory::default(),
    };
    assert_eq!(schedule.total(), 12);
    let plain =
        train_lease(round, weights, state, &LeaseWatch::default(), |_| panic!("early")).unwrap().unwrap();

    let trained = &manifest.training.unwrap().modules[0].fragments[0].weights;
    let trained = ModuleWeights::from_safetensors(&run.store.get(trained).await.unwrap(), specs).unwrap();
    let change = dipaco_codec::decode(&plain.last[0].encoded, modules[0].values.len()).unwrap();
    let moved = change.iter().map(|change| change.abs()).fold(0.0, f32::max);
    assert!(moved > 1e-4, "training moves weights by {moved}");
    let ends = modules[0].values.iter().zip(&change).map(|(start, change)| start - change);
    for (here, there) in trained.values.iter().zip(ends) {
        assert!((here - there).abs() <= 1e-6, "{here} {there}");
    }
}

#[test]
fn the_held_out_loss_does_not_count_the_prefix_and_reads_as_many_sequences_at_once_as_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokens(&folder.path().join("shard.h5"), 1, 200);
    let mut config = config();
    config.topology = TopologyConfig::grid(1, vec![dense_level()]);
    let weights = dipaco_model::init(&config.model, 1).unwrap();
    let measured = |prefix: usize, micro_batch: usize| {
        let mut plan = WorkerPlan::new(&config);
        plan.uncounted_tokens = prefix;
        let inner = InnerConfig {
            optimizer: Optimizer::AdamW,
            adamw: plan.train.adamw.clone(),
            schedule: plan.train.schedule.clone(),
            first_step: 0,
            rested: 0,
            total_steps: 1,
            batch: 4,
            micro_batch,
            sequence_tokens: plan.train.sequence_tokens,
            activation_checkpointing: false,
        };
        let (topology, state) =
            (plan.topology().unwrap(), PathState::start(&MomentSpecs::whole(&plan.model, Optimizer::AdamW)));
        let start = [weights.clone()];
        let mut trainer =
            Trainer::new(&TrainDevice::Cpu, &plan.model, &topology, &start, state, inner).unwrap();
        let opened = TokenSet::open(file.path()).unwrap();
        let data = PathData::new(opened, file.content_hash(), PathId(0), &plan).unwrap();
        let mut loss = None;
        let memory = allocation_counter::measure(|| loss = data.held_out_loss(&mut trainer).unwrap());
        (loss, memory.bytes_max)
    };
    let loss = |prefix: usize| measured(prefix, 0).0;
    // Nothing predicts the first token of a sequence, so a prefix of one token leaves out nothing.
    assert!(loss(0).is_some());
    assert_eq!(loss(0), loss(1));
    assert_ne!(loss(1), loss(8));
    // A sequence of 16 inputs predicts 16 tokens: after a prefix of 16 one is left, after 17 none.
    assert!(loss(16).is_some());
    assert_eq!(loss(17), None);
    let ((whole, of_batch), (parts, of_sequence)) = (measured(8, 0), measured(8, 1));
    assert_eq!(whole, parts);
    assert!(2 * of_sequence < of_batch, "{of_sequence} of {of_batch} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_and_path_specific_modules_do_not_depend_on_the_workers() {
    let diloco = TopologyConfig::grid(2, vec![dense_level()]);
    let level = |modules, blocks: &str, embedding| LevelConfig {
        modules,
        blocks: blocks.into(),
        embedding,
        head: !embedding,
        frozen: false,
    };
    let specific =
        TopologyConfig::grid(1, vec![level(Modules::Count(2), "0", true), level(Modules::Paths, "1", false)]);
    for (topology, paths, modules) in [(diloco, 2, 1), (specific, 2, 4)] {
        let mut bits = Vec::new();
        for workers in [1, 2] {
            let run = Run::seeded(RunConfig { topology: topology.clone(), ..config() }).await;
            run.train(workers).await;
            let training = run.manifest().await.training.unwrap();
            assert_eq!((training.paths.len(), training.modules.len()), (paths, modules));
            bits.push(run.bits().await);
        }
        assert_eq!(bits[0], bits[1]);
    }
}

/// A run of one path whose shard is `file`: its first lease.
fn first_lease(
    config: &RunConfig,
    file: TokenSet,
    measures: bool,
) -> Result<Option<TrainedLease>, PathError> {
    let plan = WorkerPlan::new(config);
    let start = dipaco_model::init(&config.model, 1).unwrap();
    let modules = split(&config.model, &plan.topology().unwrap(), &start).unwrap();
    let fragment = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };
    let global =
        GlobalFragment { fragment, values: Arc::new(modules[0].values.clone()), received: true, share: 1.0 };
    let mut state = PathState::start(&MomentSpecs::whole(&config.model, Optimizer::AdamW));
    let weights = PathWeights::new(&plan, PathId(0), &[global], &mut state, true).unwrap();
    let hash = file.content_hash().to_owned();
    let data = PathData::new(file, &hash, PathId(0), &plan)?;
    let lease = LeaseTraining {
        device: &TrainDevice::Cpu,
        plan: &plan,
        path: PathId(0),
        data: &data,
        phase_step: 0,
        to: 12,
        sends: &[],
        measures,
        memory: &TrainerMemory::default(),
    };
    train_lease(lease, weights, state, &LeaseWatch::default(), drop)
}

#[test]
fn a_lease_whose_held_out_loss_nobody_gets_ends_in_the_same_state_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.topology = TopologyConfig::grid(1, vec![dense_level()]);
    let path = folder.path().join("shard.h5");
    tokens(&path, 1, 200);
    let lease = |measures| first_lease(&config, TokenSet::open(&path).unwrap(), measures).unwrap().unwrap();
    let (heard, unheard) = (lease(true), lease(false));
    assert!(heard.report.held_out_loss.is_some());
    assert_eq!(unheard.report.held_out_loss, None);
    assert_eq!(heard.state, unheard.state);
}

#[test]
fn tokens_outside_of_the_vocabulary_end_the_training_of_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.topology = TopologyConfig::grid(1, vec![dense_level()]);
    let path = folder.path().join("shard.h5");
    let file = tokens(&path, 0, 30);
    first_lease(&config, TokenSet::open(&path).unwrap(), true).unwrap();

    // A file of the same text for a larger vocabulary than that of the model.
    let mut smaller = config.clone();
    smaller.model.vocab_size = 39;
    let refused = first_lease(&smaller, TokenSet::open(&path).unwrap(), true);
    assert!(
        matches!(
            refused,
            Err(PathError::Model(ModelError::Operation(OpsError::Vocabulary { ids: 40, entries: 39, .. })))
        ),
        "{refused:?}"
    );

    // The file's third token, of two bytes, is damaged where it lies.
    let mut bytes = std::fs::read(&path).unwrap();
    let first: Vec<u8> = file.document(0).iter().take(8).flat_map(|id| (id as u16).to_le_bytes()).collect();
    let at = bytes.windows(first.len()).position(|window| window == first).unwrap();
    bytes[at + 4] = 40;
    drop(file);
    std::fs::write(&path, bytes).unwrap();
    let refused = first_lease(&config, TokenSet::open(&path).unwrap(), true);
    assert!(
        matches!(
            &refused,
            Err(PathError::Shards(ShardsError::TokenOutOfVocabulary { token: 40, place, .. })) if place == "place 2"
        ),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_seeds_of_one_run_the_second_replaces_no_weights_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path());
    let train = tokens(&folder.path().join("train.h5"), 0, 60);
    // Both find a run without a seed. As on another processor, the second has other weights after the same steps.
    let mut first = config();
    first.seed_model.checkpoint_every = first.seed_model.steps;
    let mut second = first.clone();
    second.run.seed += 1;
    let mut seeds = Vec::new();
    for config in [first, second] {
        let started = open_run(&store, || "test-run".to_owned()).await.unwrap();
        let (store, train) = (store.clone(), train.clone());
        let options =
            SeedOptions { config, store, train, validation: None, restart: false, device: TrainDevice::Cpu };
        seeds.push((options, started));
    }
    let mut results = Vec::new();
    for (options, started) in seeds {
        let (events, never) = (Arc::new(Events::off()), Arc::new(AtomicBool::new(false)));
        results.push(train_seed(options, started, events, &Progress::hidden(), never).await);
    }
    assert!(results[0].is_ok() && results[1].is_err(), "the manifest has one winner");
    let seed = open_run(&store, String::new).await.unwrap().manifest.seed.unwrap();
    store.verify(&seed.weights).await.unwrap();
    store.verify(&seed.state.unwrap()).await.unwrap();
}
