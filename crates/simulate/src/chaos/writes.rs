//! Writes of a simulated coordinator: the parts that the ledger gives, one at a time.

use std::collections::BTreeSet;

use dipaco_ledger::WritePart;

use super::Bug;
use super::audit::check_objects;
use super::coordinator::SimulatedCoordinator;
use super::events::CoordinatorEvent;
use super::object_store::Content;
use super::world::ChaosWorld;

impl ChaosWorld<'_> {
    /// Begins the next write if none is under way.
    pub(super) fn begin_write(&mut self) -> Result<(), String> {
        let Some(coordinator) = self.coordinator.as_mut().filter(|_| self.writing.is_empty()) else {
            return Ok(());
        };
        let Some(draft) = coordinator.ledger.poll_write() else {
            return Ok(());
        };
        self.writing.extend(draft.finish().map_err(|error| error.to_string())?);
        if self.bug == Some(Bug::EarlyDelete) {
            // The planted bug: objects go before the manifest that does not refer to them.
            self.writing.rotate_right(1);
        }
        let pause = self.disk_time();
        self.after_for_coordinator(pause, CoordinatorEvent::Written);
        Ok(())
    }

    /// The next part of the coordinator's write is on the disk.
    pub(super) fn write_next_of_coordinator(&mut self) -> Result<(), String> {
        let Some(mut coordinator) = self.coordinator.take() else { return Ok(()) };
        let written = self.write_next(&mut coordinator)?;
        let answers = written.map(|change| coordinator.answers.written(change));
        self.coordinator = Some(coordinator);
        answers.into_iter().flatten().for_each(|answer| self.send(&answer));
        if !self.writing.is_empty() {
            let pause = self.disk_time();
            self.after_for_coordinator(pause, CoordinatorEvent::Written);
        }
        Ok(())
    }

    /// Makes the next part of the write under way durable. Returns the last change of a manifest.
    pub(super) fn write_next(
        &mut self,
        coordinator: &mut SimulatedCoordinator,
    ) -> Result<Option<u64>, String> {
        let mut written = None;
        match self.writing.pop_front() {
            None => return Ok(None),
            Some(WritePart::Checkpoint(checkpoint)) => {
                self.store.put(&checkpoint.object, Content::Checkpoint(checkpoint.content));
            }
            Some(WritePart::Manifest { manifest, change }) => {
                let steps = coordinator.merged.written(change);
                let before = std::mem::replace(&mut self.disk.manifest, *manifest);
                let before = before.training.ok_or("the manifest has no training")?;
                self.audit.written(self.case, &before, self.disk.training()?, &steps)?;
                written = Some(change);
            }
            Some(WritePart::Deletions(names)) => {
                coordinator.dropped.add(names);
                let pinned = match self.bug {
                    // The planted bug: nobody asks for pins.
                    Some(Bug::IgnoredPin) => BTreeSet::new(),
                    _ => self.pins.names(),
                };
                let unpinned = coordinator.dropped.take_unpinned(&pinned);
                let unused = coordinator.ledger.unused(unpinned);
                unused.iter().for_each(|name| self.store.delete(name));
            }
        }
        check_objects(self.case, &self.disk, &self.store)?;
        self.pins.check(&self.store)?;
        Ok(written)
    }
}
