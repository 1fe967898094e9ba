//! Writes the manifest when the ledger has changed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_ledger::{DroppedObjects, Ledger, NewCheckpoint, WritePart};
use dipaco_net::Clock;
use dipaco_store::{ManifestSequence, RunStore};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::coordinator::error::CoordinatorError;
use crate::coordinator::written_changes::WrittenChanges;
use crate::host::HostError;

/// Pause after a write for each path of the run. The manifest has about a kilobyte a path.
const PAUSE: Duration = Duration::from_micros(30);

/// Writes the manifest: one write for all changes since the previous write, and a pause between writes, so that a run
/// with thousands of paths does not spend its time on writing. No peer is told of a change before it is on the disk, and
/// no object is deleted to which the manifest on the disk refers.
pub(crate) struct ManifestWriter {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) store: RunStore,
    /// Sequence number of the manifest on the disk.
    pub(crate) sequence: ManifestSequence,
    /// Notified by every change of the ledger.
    pub(crate) changed: Arc<Notify>,
    /// The requests that wait for their change to be on the disk.
    pub(crate) written: Arc<WrittenChanges>,
    /// Objects to delete when no reader has pinned them any more.
    pub(crate) dropped: DroppedObjects,
    /// Ends the pins of readers that are gone.
    pub(crate) clock: Clock,
}

impl Drop for ManifestWriter {
    fn drop(&mut self) {
        self.written.end();
    }
}

impl ManifestWriter {
    /// Deletes the objects that the manifest on the disk does not refer to, except for those that a reader has pinned.
    async fn delete_dropped(&mut self) -> Result<(), CoordinatorError> {
        if self.dropped.is_empty() {
            return Ok(());
        }
        // After the manifest: a reader that found its objects in the manifest before has written its pin by now.
        let pinned = self.store.pinned(self.clock.now()).await?;
        for name in self.dropped.take_unpinned(&pinned) {
            self.store.delete(&name).await?;
        }
        Ok(())
    }

    /// Writes the changes of the ledger since the last write, in the order of its parts. Returns the pause before the next
    /// write.
    pub(crate) async fn write_pending(&mut self) -> Result<Duration, CoordinatorError> {
        // A statement of its own, so that the ledger is not locked while the write is encoded: with thousands of paths that
        // takes long.
        // A ledger that a panic has left half changed is never written, also if nobody waits for the change any more.
        let draft = self.ledger.lock().map_err(|_| HostError::Broken)?.poll_write();
        let Some(draft) = draft else {
            return Ok(Duration::ZERO);
        };
        let mut pause = Duration::ZERO;
        for part in draft.finish()? {
            match part {
                WritePart::Checkpoint(NewCheckpoint { object, content }) => {
                    self.store.put_referenced(&object, [content.into()]).await?;
                }
                WritePart::Manifest { manifest, change } => {
                    let paths = manifest.training.as_ref().map_or(0, |training| training.paths.len());
                    pause = PAUSE * u32::try_from(paths).unwrap_or(u32::MAX);
                    self.sequence = self.store.replace(&*manifest, self.sequence).await?;
                    self.written.note(change);
                }
                WritePart::Deletions(names) => self.dropped.add(names),
            }
        }
        Ok(pause)
    }

    /// Writes until `stop` is triggered, and then the remaining changes.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), CoordinatorError> {
        loop {
            // Read before the ledger: changes that precede the stop are in this write, the last one.
            let stopping = stop.is_cancelled();
            let pause = self.write_pending().await?;
            self.delete_dropped().await?;
            if stopping {
                return Ok(());
            }
            let next_change = async {
                tokio::time::sleep(pause).await;
                self.changed.notified().await;
            };
            tokio::select! {
                () = next_change => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use dipaco_config::RunConfig;
    use dipaco_ledger::{
        CountRecord, FragmentRecord, ModuleRecord, PathRecord, RunManifest, ShardRecord, StoredRun,
        TrainingRecord,
    };
    use dipaco_protocol::WorkerPlan;
    use dipaco_store::ObjectRef;
    use dipaco_topology::{ModuleId, Topology, TopologyConfig};

    use super::*;
    use crate::coordinator::ledger_plan;

    /// The writer of a run of one path, and the ledger that it writes.
    fn writer(store: RunStore) -> (ManifestWriter, Arc<Mutex<Ledger>>) {
        let mut config = RunConfig { topology: TopologyConfig::dense(1), ..RunConfig::default() };
        config.model.blocks = 1;
        let weights = ObjectRef::of("modules/0/0", b"weights");
        let module = ModuleId { level: 0, index: 0 };
        let path = PathRecord {
            sent: vec![0],
            adopted: vec![0],
            counted: vec![CountRecord::default()],
            ..PathRecord::default()
        };
        let training = TrainingRecord {
            origin: "origin".into(),
            rounds: config.train.rounds,
            inner_steps: config.train.inner_steps,
            boundaries: Vec::new(),
            phase: 0,
            shards: vec![ShardRecord { file: "0".into(), hash: "h".into(), documents: 3, tokens: 100 }],
            modules: vec![ModuleRecord { module, fragments: vec![FragmentRecord::first(weights)] }],
            paths: vec![path],
            numerics: None,
            numerics_token: None,
        };
        let manifest = RunManifest { training: Some(training), ..RunManifest::new("run".into()) };
        let stored = StoredRun { manifest, checkpoints: Vec::new(), names: Vec::new() };
        let topology = Topology::new(&config.topology, config.model.blocks).unwrap();
        let plan = ledger_plan(&WorkerPlan::new(&config)).unwrap();
        let ledger = Arc::new(Mutex::new(Ledger::take_over(stored, topology, plan).unwrap()));
        let writer = ManifestWriter {
            ledger: ledger.clone(),
            store,
            sequence: ManifestSequence::NONE,
            changed: Arc::default(),
            written: Arc::default(),
            dropped: DroppedObjects::default(),
            clock: Clock::system(),
        };
        (writer, ledger)
    }

    #[tokio::test]
    async fn a_ledger_that_a_panic_has_left_half_changed_is_not_written() {
        for panics in [false, true] {
            let store = RunStore::in_memory();
            let (mut writer, ledger) = writer(store.clone());
            if panics {
                let stopped = catch_unwind(AssertUnwindSafe(|| {
                    let _locked = ledger.lock().unwrap();
                    panic!("the bug of this test");
                }));
                assert!(stopped.is_err());
            }
            let written = writer.write_pending().await;
            assert_eq!(matches!(written, Err(CoordinatorError::Host(HostError::Broken))), panics);
            assert_eq!(store.list("").await.unwrap().is_empty(), panics);
        }
    }
}
