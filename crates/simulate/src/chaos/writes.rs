//! Writes of a simulated coordinator, part by part.

use std::collections::VecDeque;

use super::Bug;
use super::audit::check_objects;
use super::object_store::Content;
use super::toy::MergedStep;
use super::world::{ChaosWorld, CoordinatorEvent, WriteUnderWay};

impl ChaosWorld<'_> {
    /// Begins the next write if none is under way.
    pub(super) fn begin_write(&mut self) -> Result<(), String> {
        let Some(coordinator) = self.coordinator.as_mut().filter(|_| self.writing.is_none()) else {
            return Ok(());
        };
        let Some(draft) = coordinator.ledger.poll_write() else {
            return Ok(());
        };
        let pending = draft.finish().map_err(|error| error.to_string())?;
        if self.bug == Some(Bug::EarlyDelete) {
            // The planted bug: objects go before the manifest that does not refer to them.
            pending.obsolete.iter().for_each(|name| self.store.delete(name));
        }
        self.writing = Some(WriteUnderWay { pending });
        let pause = self.disk_time();
        self.after_for_coordinator(pause, CoordinatorEvent::Written);
        Ok(())
    }

    /// The next part of the coordinator's write is on the disk.
    pub(super) fn write_next_of_coordinator(&mut self) -> Result<(), String> {
        let Some(coordinator) = &mut self.coordinator else { return Ok(()) };
        let merged = std::mem::take(&mut coordinator.merged);
        let (written, merged) = self.write_next(merged)?;
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.merged = merged;
            coordinator.written = coordinator.written.max(written);
        }
        self.send_written();
        if self.writing.is_some() {
            let pause = self.disk_time();
            self.after_for_coordinator(pause, CoordinatorEvent::Written);
        }
        Ok(())
    }

    /// Makes the next part of the write under way durable: the checkpoint, then the manifest, then the deletions. Returns
    /// the last change on the disk, and the outer steps of later changes.
    pub(super) fn write_next(
        &mut self,
        mut merged: VecDeque<(u64, MergedStep)>,
    ) -> Result<(u64, VecDeque<(u64, MergedStep)>), String> {
        let Some(WriteUnderWay { pending }) = &mut self.writing else { return Ok((0, merged)) };
        if let Some(checkpoint) = pending.checkpoint.take() {
            self.store.put(&checkpoint.object, Content::Checkpoint(checkpoint.content));
            return Ok((0, merged));
        }
        if let Some(manifest) = pending.manifest.take() {
            let change = pending.change;
            let later = merged.partition_point(|(of, _)| *of <= change);
            let later = merged.split_off(later);
            let steps: Vec<_> = merged.into_iter().map(|(_, step)| step).collect();
            let before = std::mem::replace(&mut self.disk.manifest, manifest);
            let before = before.training.ok_or("the manifest has no training")?;
            self.audit.written(self.case, &before, self.disk.training()?, &steps)?;
            check_objects(self.case, &self.disk, &self.store)?;
            return Ok((change, later));
        }
        pending.obsolete.iter().for_each(|name| self.store.delete(name));
        self.writing = None;
        check_objects(self.case, &self.disk, &self.store)?;
        Ok((0, merged))
    }
}
