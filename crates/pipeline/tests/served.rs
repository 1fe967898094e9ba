//! The description of served weights: the fingerprint and the time belong to the version that is served.
#![expect(clippy::unwrap_used, reason = "a test that can't write its store has failed")]

use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dipaco_config::RunConfig;
use dipaco_pipeline::serve::{FixedParts, fingerprint, served_run};
use dipaco_pipeline::{RunDirectory, Version, Weights, save_config};
use dipaco_server::WeightType;
use dipaco_store::{
    EarlyStoppingBest, FragmentRecord, KeptVersion, ManifestSequence, ModuleRecord, ObjectRef, PathRecord,
    RunManifest, RunStore, TrainingRecord, names,
};
use dipaco_topology::{ModuleId, Topology};

/// A run of 2 × 2 paths whose modules have the versions 1 and 2, with placeholders as weights.
struct TrainedRun {
    directory: RunDirectory,
    config: RunConfig,
    _folder: tempfile::TempDir,
}

impl TrainedRun {
    /// A run in which every path was best at version `best`.
    async fn new(best: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = RunDirectory::new(folder.path().join("run"));
        let mut config = RunConfig::default();
        config.model.vocab_size = 64;
        save_config(&directory, &config).unwrap();
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let store = RunStore::create(&directory.store()).unwrap();
        let mut modules = Vec::new();
        for module in topology.module_ids() {
            let kept = put(&store, &directory, module, 1).await;
            let weights = put(&store, &directory, module, 2).await;
            let kept = vec![KeptVersion { version: 1, weights: kept }];
            let fragment = FragmentRecord {
                version: 2,
                weights,
                momentum: None,
                changes: Vec::new(),
                kept,
                norms: Vec::new(),
                norm_paths: Vec::new(),
            };
            modules.push(ModuleRecord { module, fragments: vec![fragment] });
        }
        let path = PathRecord {
            best: Some(EarlyStoppingBest { round: best, versions: vec![best; topology.levels()], loss: 1.0 }),
            ..PathRecord::default()
        };
        let training = TrainingRecord {
            rounds: 2,
            inner_steps: 1,
            modules,
            paths: vec![path; topology.paths() as usize],
            ..TrainingRecord::default()
        };
        let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) };
        store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
        Self { directory, config, _folder: folder }
    }

    async fn fingerprint(&self, version: Version) -> String {
        self.fingerprint_with(version, &fixed()).await
    }

    async fn fingerprint_with(&self, version: Version, fixed: &FixedParts) -> String {
        let weights = Weights::open(&self.directory, &self.config, version).await.unwrap();
        fingerprint(&self.config, &weights, fixed).unwrap()
    }

    async fn served(&self, version: Version) -> dipaco_server::ServedRun {
        let weights = Weights::open(&self.directory, &self.config, version).await.unwrap();
        served_run(&self.config, &weights).await.unwrap()
    }
}

/// Tokenizer and routers of a server.
fn fixed() -> FixedParts {
    FixedParts {
        tokenizer: "tokenizer".to_owned(),
        end_tokens: vec![0, 1],
        router: "router".to_owned(),
        transformer_router: Some("transformer".to_owned()),
    }
}

/// Stores placeholder weights that were written at [`written`].
async fn put(store: &RunStore, run: &RunDirectory, module: ModuleId, version: u32) -> ObjectRef {
    let content = format!("module {module}, version {version}");
    let object = store.put(&names::weights(module, 0, version, 0), content.into()).await.unwrap();
    let file =
        File::options().write(true).open(std::path::Path::new(&run.store()).join(&object.name)).unwrap();
    file.set_modified(written(module, version)).unwrap();
    object
}

/// The time at which a version of a module was written: day `version`, a second later for each module.
fn written(module: ModuleId, version: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(86_400 * u64::from(version) + u64::from(module.index))
}

#[tokio::test]
async fn the_fingerprint_is_of_the_served_version_and_of_its_number_types() {
    let mut run = TrainedRun::new(1).await;
    let (current, best) = (run.fingerprint(Version::Current).await, run.fingerprint(Version::Best).await);
    assert_ne!(current, best);
    assert_eq!(best, run.fingerprint(Version::Best).await);
    run.config.serve.format = WeightType::Q8_0;
    assert_ne!(current, run.fingerprint(Version::Current).await);

    let run = TrainedRun::new(2).await;
    let (current, best) = (run.fingerprint(Version::Current).await, run.fingerprint(Version::Best).await);
    assert_eq!(current, best, "the same weights have the same fingerprint");
}

#[tokio::test]
async fn the_fingerprint_is_of_the_routers_and_of_the_tokenizer_too() {
    let run = TrainedRun::new(2).await;
    let other = || "other".to_owned();
    let changed = [
        FixedParts { tokenizer: other(), ..fixed() },
        FixedParts { end_tokens: vec![0], ..fixed() },
        FixedParts { router: other(), ..fixed() },
        FixedParts { transformer_router: Some(other()), ..fixed() },
        FixedParts { transformer_router: None, ..fixed() },
        // The same bytes in another place.
        FixedParts { tokenizer: fixed().router, router: fixed().tokenizer, ..fixed() },
    ];
    let mut seen = vec![run.fingerprint(Version::Current).await];
    for parts in &changed {
        seen.push(run.fingerprint_with(Version::Current, parts).await);
    }
    let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "{seen:?}");
    assert_eq!(seen[0], run.fingerprint(Version::Current).await);
}

#[tokio::test]
async fn created_is_the_time_of_the_newest_served_weights() {
    let run = TrainedRun::new(1).await;
    assert_eq!(run.served(Version::Current).await.created, 2 * 86_400 + 1);
    assert_eq!(run.served(Version::Best).await.created, 86_400 + 1);
}
