//! The leases of simulated learners.

use dipaco_sync::{
    Commit, Fence, Grant, LeaseClaim, LeaseError, LeaseOutcome, LeaseRequest, LeaseSecret, ScheduledSend,
};

use super::{RunEnd, RunEvent, RunWorld};
use crate::SimulateError;

/// Shortest time between two events, in seconds: that of the events' clock.
const CLOCK_TICK: f64 = 1e-9;

impl RunWorld<'_> {
    /// A learner asks for a lease, if it is free.
    pub(super) fn ask(&mut self, number: usize) {
        let learner = &self.learners[number];
        if !learner.is_free() {
            return;
        }
        let secret = LeaseSecret::default();
        let request = LeaseRequest { worker: &learner.worker, held: &learner.held, secret, numerics: "" };
        let Grant::Lease(lease) = self.run_state.grant(self.now, &request) else {
            return;
        };
        self.note_start(number, lease.from);
        self.learners[number].begin(*lease);
        self.go(number);
    }

    /// A learner whose results are on their way asks for the lease that follows, and trains meanwhile.
    pub(super) fn follow(&mut self, number: usize) -> Result<(), SimulateError> {
        let learner = &self.learners[number];
        let Some(current) = learner.current.as_ref().filter(|_| learner.waits_for_arrival()) else {
            return Ok(());
        };
        let claim = current.lease.claim();
        let granted = self.run_state.follow(self.now, &claim, LeaseSecret::default());
        let Grant::Lease(lease) = granted.map_err(|error| self.refused(number, &error))? else {
            return Ok(());
        };
        self.note_start(number, lease.from);
        self.learners[number].follow(*lease);
        self.go(number);
        Ok(())
    }

    /// A learner begins a lease at this inner step.
    fn note_start(&mut self, number: usize, from: u64) {
        if let RunEnd::Step(step) = self.end
            && from >= step
        {
            self.before_end.remove(&number);
        }
    }

    /// The claim of a learner's lease.
    fn claim(&self, number: usize, fence: Fence) -> Option<LeaseClaim> {
        self.learners[number].lease(fence).map(|held| held.lease.claim())
    }

    fn refused(&self, number: usize, error: &LeaseError) -> SimulateError {
        SimulateError::Refused {
            seconds: self.now.as_secs_f64(),
            learner: number,
            problem: error.to_string(),
        }
    }

    pub(super) fn contribute(
        &mut self,
        number: usize,
        fence: Fence,
        send: ScheduledSend,
    ) -> Result<(), SimulateError> {
        let Some(claim) = self.claim(number, fence) else { return Ok(()) };
        let expected = self.run_state.expects(&claim, send.fragment, send.number, 0);
        let expected = expected.map_err(|error| self.refused(number, &error))?;
        if let Commit::Refused(error) = self.run_state.contribute(&expected) {
            return Err(self.refused(number, &error));
        }
        self.step()
    }

    pub(super) fn complete(&mut self, number: usize, fence: Fence) -> Result<(), SimulateError> {
        let Some(claim) = self.claim(number, fence) else { return Ok(()) };
        let earlier = self.learners[number].uploading.as_ref().filter(|held| held.lease.fence != fence);
        if let Some(earlier) = earlier {
            // Leases complete in their order. This one has sent nothing, so it would overtake the results of the one before it.
            let pause = earlier.arrived - self.now.as_secs_f64();
            self.after(pause.max(CLOCK_TICK), RunEvent::Finished(number, fence));
            return Ok(());
        }
        let seconds = self.learners[number].lease(fence).map_or(0.0, |held| held.seconds);
        let done = LeaseOutcome { seconds, ..LeaseOutcome::default() };
        if let Commit::Refused(error) = self.run_state.commit(self.now, &claim, &done) {
            return Err(self.refused(number, &error));
        }
        self.learners[number].done();
        self.step()?;
        self.ask(number);
        self.follow(number)
    }
}
