//! A manifest whose weights stay in the store while it is read, although a training goes on beside the reader.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use dipaco_store::{RunManifest, RunStore};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::PipelineError;

/// Life of a pin. A reader that is gone keeps its objects for this long.
const LIFE: Duration = Duration::from_secs(60);
/// Longest wait for the end of a pin when its reader ends.
const UNPIN: Duration = Duration::from_secs(2);
/// Attempts to pin the objects of a manifest before the training drops some of them.
const ATTEMPTS: u32 = 100;

/// Tells the readers of one process apart.
static READERS: AtomicU32 = AtomicU32::new(0);

/// Keeps the objects of a manifest in the store. A drop ends the pin.
#[derive(Debug)]
pub(crate) struct ReaderPin {
    store: RunStore,
    reader: String,
    renewal: JoinHandle<()>,
    runtime: Handle,
}

/// The current manifest and the pin of its weights; `None` for the manifest if the store has none.
pub(crate) struct PinnedManifest {
    pub(crate) manifest: RunManifest,
    pub(crate) warnings: Vec<String>,
    /// `None` if this process may not write into the store. Its objects may then be dropped.
    pub(crate) pin: Option<ReaderPin>,
}

impl PinnedManifest {
    /// Loads the current manifest and pins its weights.
    pub(crate) async fn load(store: &RunStore) -> Result<Option<Self>, PipelineError> {
        let number = READERS.fetch_add(1, Ordering::Relaxed);
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let reader = format!("{begun:x}-{}-{number}", std::process::id());
        let Some(mut loaded) = store.load::<RunManifest>().await? else { return Ok(None) };
        for _ in 0..ATTEMPTS {
            let needed = weights(&loaded.manifest);
            if let Err(error) = store.pin(&reader, needed.clone(), SystemTime::now() + LIFE).await {
                tracing::warn!(%error, "this process may not write into the store, so a training beside it can delete the weights that it reads");
                return Ok(Some(Self { manifest: loaded.manifest, warnings: loaded.warnings, pin: None }));
            }
            // What the manifest still refers to after the pin was written can't be deleted any more.
            let Some(again) = store.load::<RunManifest>().await? else { return Ok(None) };
            let kept = weights(&again.manifest);
            if needed.is_subset(&kept) {
                let pin = ReaderPin::hold(store.clone(), reader, needed);
                return Ok(Some(Self {
                    manifest: loaded.manifest,
                    warnings: loaded.warnings,
                    pin: Some(pin),
                }));
            }
            loaded = again;
        }
        store.unpin(&reader).await?;
        Err(PipelineError::BusyRun { store: store.address().to_owned() })
    }
}

impl ReaderPin {
    /// Renews a pin until it is dropped.
    fn hold(store: RunStore, reader: String, objects: BTreeSet<String>) -> Self {
        let (own, name) = (store.clone(), reader.clone());
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LIFE / 3).await;
                if let Err(error) = own.pin(&name, objects.clone(), SystemTime::now() + LIFE).await {
                    tracing::warn!(%error, "the pin of the weights in use can't be renewed");
                }
            }
        });
        Self { store, reader, renewal, runtime: Handle::current() }
    }
}

impl Drop for ReaderPin {
    fn drop(&mut self) {
        self.renewal.abort();
        let (store, reader) = (self.store.clone(), self.reader.clone());
        // The process may end right after the drop, so a task of the runtime might never run. A thread of its own can wait
        // inside and outside of a runtime. A pin that stays behind ends by itself.
        let (runtime, (done, ended)) = (self.runtime.clone(), mpsc::channel());
        let thread = std::thread::Builder::new().name("unpin".to_owned()).spawn(move || {
            if let Err(error) = runtime.block_on(store.unpin(&reader)) {
                tracing::debug!(%error, "a pin ends by its time");
            }
            // The reader may have stopped waiting.
            let _ = done.send(());
        });
        match thread {
            Ok(_) => drop(ended.recv_timeout(UNPIN)),
            Err(error) => tracing::debug!(%error, "a pin ends by its time"),
        }
    }
}

/// The names of all weights in a manifest: of the seed, and of all versions of modules.
fn weights(manifest: &RunManifest) -> BTreeSet<String> {
    let modules = manifest.training.iter().flat_map(|training| &training.modules);
    let fragments = modules.flat_map(|module| &module.fragments);
    let versions = fragments
        .flat_map(|fragment| fragment.kept.iter().map(|kept| &kept.weights).chain([&fragment.weights]));
    let seed = manifest.seed.iter().map(|seed| &seed.weights);
    versions.chain(seed).map(|object| object.name.clone()).collect()
}
