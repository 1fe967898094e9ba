//! The leases of simulated learners.

use dipaco_sync::{
    Commit, Fence, Grant, LeaseClaim, LeaseError, LeaseOutcome, LeaseRequest, LeaseSecret, ScheduledSend,
};

use super::{RunEnd, RunWorld};
use crate::SimulateError;

impl RunWorld<'_> {
    /// A learner asks for a lease, if it is free.
    pub(super) fn ask(&mut self, number: usize) {
        let learner = &mut self.learners[number];
        if !learner.is_free() {
            return;
        }
        let secret = LeaseSecret::default();
        let request = LeaseRequest { worker: &learner.worker, held: &learner.held, secret };
        let Grant::Lease(lease) = self.run_state.grant(self.now, &request) else {
            return;
        };
        if let RunEnd::Step(step) = self.end
            && lease.from >= step
        {
            self.before_end.remove(&number);
        }
        learner.begin(*lease);
        self.go(number);
    }

    /// A learner's lease, if it is still current.
    fn claim(&self, number: usize, fence: Fence) -> Option<LeaseClaim> {
        let lease = &self.learners[number].current.as_ref()?.lease;
        (lease.fence == fence).then(|| lease.claim())
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
        self.step();
        Ok(())
    }

    pub(super) fn complete(&mut self, number: usize, fence: Fence) -> Result<(), SimulateError> {
        let Some(claim) = self.claim(number, fence) else { return Ok(()) };
        let seconds = self.learners[number].current.as_ref().map_or(0.0, |current| current.seconds);
        let done = LeaseOutcome { seconds, ..LeaseOutcome::default() };
        if let Commit::Refused(error) = self.run_state.commit(self.now, &claim, &done) {
            return Err(self.refused(number, &error));
        }
        self.learners[number].done();
        self.step();
        self.ask(number);
        Ok(())
    }
}
