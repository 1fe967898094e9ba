//! A manifest whose weights stay in the store while it is read, although a training goes on beside the reader.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use dipaco_store::{KeptVersion, Patience, RunManifest, RunStore};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::error::PipelineError;
use crate::version::Version;

/// Life of a pin. A reader that is gone keeps its objects for this long.
const LIFE: Duration = Duration::from_secs(60);
/// Time for which an ended pin of another reader stays: the clocks of two machines may differ.
const GRACE: Duration = LIFE;
/// Time between two attempts to write a pin while the store fails.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait for the removal of pins at the end of a process.
const UNPIN: Duration = Duration::from_secs(2);
/// Attempts to pin the objects of a manifest before the training drops some of them.
const ATTEMPTS: u32 = 100;

/// Tells the readers of one process apart.
static READERS: AtomicU32 = AtomicU32::new(0);
/// Number of pins of this process whose readers have ended and that may still be in the store.
static ENDING: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

/// Keeps the objects of a manifest in the store. A drop ends the pin and does not wait: a task of the runtime removes it.
#[derive(Debug)]
pub(crate) struct ReaderPin {
    /// `None` only while it is dropped.
    stop: Option<oneshot::Sender<Ending>>,
}

/// Counts a pin among those that are being removed, until it is dropped.
#[derive(Debug)]
struct Ending(());

/// The current manifest and the pin of its weights; `None` for the manifest if the store has none.
pub(crate) struct PinnedManifest {
    pub(crate) manifest: RunManifest,
    pub(crate) warnings: Vec<String>,
    /// `None` if this process may not write into the store. Its objects may then be dropped.
    pub(crate) pin: Option<ReaderPin>,
}

/// Waits until the pins of dropped weights are removed from the store, for 2 s at most. A process that is about to end awaits
/// it on the runtime on which the weights were opened. A pin that stays ends by its time, a minute after its last renewal.
pub async fn pins_ended() {
    let mut ending = ENDING.subscribe();
    if timeout(UNPIN, ending.wait_for(|pins| *pins == 0)).await.is_err() {
        tracing::debug!("pins stay in the store and end by their time");
    }
}

impl PinnedManifest {
    /// Loads the current manifest and pins its weights, as far as a reader of this version needs them.
    pub(crate) async fn load(store: &RunStore, version: Version) -> Result<Option<Self>, PipelineError> {
        Self::load_and_retry(store, version, RETRY).await
    }

    /// [`Self::load`]. A pin that can't be written is tried again every `retry`.
    async fn load_and_retry(
        store: &RunStore,
        version: Version,
        retry: Duration,
    ) -> Result<Option<Self>, PipelineError> {
        let number = READERS.fetch_add(1, Ordering::Relaxed);
        let begun = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let reader = format!("{begun:x}-{}-{number}", std::process::id());
        let Some(mut loaded) = store.load::<RunManifest>().await? else { return Ok(None) };
        for _ in 0..ATTEMPTS {
            let needed = weights(&loaded.manifest, version);
            if let Err(error) = store.pin(&reader, needed.clone(), SystemTime::now() + LIFE).await {
                let pin = if error.is_denied() {
                    tracing::warn!(%error, source = ?error.source(), "this process may not write into the store, so a training beside it can delete the weights that it reads");
                    None
                } else {
                    tracing::warn!(%error, source = ?error.source(), "the pin of the weights can't be written yet, so a training beside this process can delete them until it is");
                    Some(ReaderPin::hold(store.clone(), reader, needed, false, retry))
                };
                return Ok(Some(Self { manifest: loaded.manifest, warnings: loaded.warnings, pin }));
            }
            // What the manifest still refers to after the pin was written can't be deleted any more.
            let Some(again) = store.load::<RunManifest>().await? else { return Ok(None) };
            let kept = weights(&again.manifest, Version::Best);
            if needed.is_subset(&kept) {
                tokio::spawn(remove_ended(store.clone()));
                let pin = ReaderPin::hold(store.clone(), reader, needed, true, retry);
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
    /// Renews a pin until it is dropped, and then removes it. `written` tells if the pin is in the store already.
    fn hold(
        store: RunStore,
        reader: String,
        objects: BTreeSet<String>,
        mut written: bool,
        retry: Duration,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel::<Ending>();
        tokio::spawn(async move {
            let ending = loop {
                // One write at a time, and the removal after the last: no late write can bring the pin back.
                let pause = if written { LIFE / 3 } else { retry };
                if let Ok(ending) = timeout(pause, &mut stopped).await {
                    break ending;
                }
                let renewed = store.pin(&reader, objects.clone(), SystemTime::now() + LIFE).await;
                match &renewed {
                    Ok(()) if !written => tracing::info!("the pin of the weights in use is written"),
                    Err(error) if written => {
                        tracing::warn!(%error, source = ?error.source(), "the pin of the weights in use can't be renewed, so a training beside this process can delete them");
                    }
                    // One line of the log for each change.
                    _ => {}
                }
                written = renewed.is_ok();
            };
            if let Err(error) = store.unpin(&reader).await {
                tracing::debug!(%error, "a pin ends by its time");
            }
            drop(ending);
        });
        Self { stop: Some(stop) }
    }
}

impl Drop for ReaderPin {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Sending fails only when the runtime is gone. The pin then ends by its time.
            let _ = stop.send(Ending::begin());
        }
    }
}

impl Ending {
    fn begin() -> Self {
        ENDING.send_modify(|pins| *pins += 1);
        Self(())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        ENDING.send_modify(|pins| *pins -= 1);
    }
}

/// Removes the pins of readers that were killed. Only a training does so otherwise, and a complete run gets none. The reader does
/// not wait for this, and a failure is no harm to it: perhaps it may not delete what others wrote.
async fn remove_ended(store: RunStore) {
    let store = store.with_patience(Patience::default());
    let long_ago = SystemTime::now().checked_sub(GRACE).unwrap_or(SystemTime::UNIX_EPOCH);
    if let Err(error) = store.pinned(long_ago).await {
        tracing::debug!(%error, source = ?error.source(), "pins of readers that are gone stay in the store");
    }
}

/// The names of the weights in a manifest that a reader of this version may read: of the seed, and of the current modules. A best
/// version may be any that the manifest keeps.
fn weights(manifest: &RunManifest, version: Version) -> BTreeSet<String> {
    let modules = manifest.training.iter().flat_map(|training| &training.modules);
    let fragments = modules.flat_map(|module| &module.fragments);
    let versions = fragments.flat_map(|fragment| {
        let earlier: &[KeptVersion] = match version {
            Version::Current => &[],
            Version::Best => &fragment.kept,
        };
        earlier.iter().map(|kept| &kept.weights).chain([&fragment.weights])
    });
    let seed = manifest.seed.iter().map(|seed| &seed.weights);
    versions.chain(seed).map(|object| object.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use dipaco_store::{FragmentRecord, ManifestSequence, ModuleRecord, ObjectRef, TrainingRecord};
    use dipaco_topology::ModuleId;

    use super::*;

    /// A store in a folder, with a manifest.
    async fn store() -> (tempfile::TempDir, RunStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(folder.path().to_str().unwrap()).unwrap();
        store.replace(&RunManifest::new("run".to_owned()), ManifestSequence::NONE).await.unwrap();
        (folder, store)
    }

    /// Number of pins, without giving another task its turn.
    fn pins(folder: &tempfile::TempDir) -> usize {
        let entries = std::fs::read_dir(folder.path().join("readers")).into_iter().flatten();
        entries.filter(|entry| !entry.as_ref().unwrap().path().to_string_lossy().contains('#')).count()
    }

    #[tokio::test]
    async fn a_reader_that_ends_does_not_wait_for_the_store_and_its_process_does() {
        let (folder, store) = store().await;
        let loaded = PinnedManifest::load(&store, Version::Current).await.unwrap().unwrap();
        assert_eq!(pins(&folder), 1);
        drop(loaded);
        // This test's runtime has one thread, so nothing else has run since.
        assert_eq!(pins(&folder), 1, "the drop has waited for the store");
        pins_ended().await;
        assert_eq!(pins(&folder), 0);
    }

    #[tokio::test]
    async fn a_pin_that_fails_at_first_is_written_when_the_store_is_mended() {
        let (folder, store) = store().await;
        // A file in the place of the folder fails each write, also those of root.
        let place = folder.path().join("readers");
        std::fs::write(&place, "").unwrap();
        let loaded = PinnedManifest::load_and_retry(&store, Version::Current, Duration::ZERO);
        let loaded = loaded.await.unwrap().unwrap();
        assert!(loaded.pin.is_some(), "the reader has given up");
        std::fs::remove_file(&place).unwrap();
        let written = async {
            while pins(&folder) == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), written).await.unwrap();
        drop(loaded);
        pins_ended().await;
        assert_eq!(pins(&folder), 0);
    }

    #[tokio::test]
    async fn a_reader_removes_the_pins_of_readers_that_were_killed() {
        let (folder, store) = store().await;
        let now = SystemTime::now();
        let ends = [("killed", now - 2 * GRACE), ("slow", now - GRACE / 2), ("other", now + LIFE)];
        for (reader, end) in ends {
            store.pin(reader, BTreeSet::from([reader.to_owned()]), end).await.unwrap();
        }
        let loaded = PinnedManifest::load(&store, Version::Current).await.unwrap().unwrap();
        assert_eq!(pins(&folder), ends.len() + 1, "the reader has waited for the removal");
        let removed = async {
            while pins(&folder) > ends.len() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), removed).await.unwrap();
        let left = store.pinned(now - GRACE).await.unwrap();
        assert_eq!(left, ["slow", "other"].map(str::to_owned).into());
        drop(loaded);
    }

    #[tokio::test]
    async fn a_reader_of_the_current_version_keeps_no_earlier_one() {
        let object = |version: u32| ObjectRef::of(format!("modules/0/0/0/{version}-0"), b"weights");
        let kept = vec![KeptVersion { version: 1, weights: object(1) }];
        let fragment = FragmentRecord { version: 2, kept, ..FragmentRecord::first(object(2)) };
        let module = ModuleRecord { module: ModuleId { level: 0, index: 0 }, fragments: vec![fragment] };
        let training = TrainingRecord { modules: vec![module], ..TrainingRecord::default() };
        let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".to_owned()) };
        for (version, needed) in [(Version::Current, vec![2]), (Version::Best, vec![1, 2])] {
            let store = RunStore::in_memory();
            store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
            let _loaded = PinnedManifest::load(&store, version).await.unwrap().unwrap();
            let needed: BTreeSet<_> = needed.into_iter().map(|version| object(version).name).collect();
            assert_eq!(store.pinned(SystemTime::now()).await.unwrap(), needed);
        }
    }
}
