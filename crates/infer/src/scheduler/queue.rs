//! Which sequences find room in the queue.
//!
//! A client alone may fill the queue. In a full queue each client with sequences has an equal share, and it is refused only
//! when its own sequences fill its share. A client with few sequences therefore finds room. k clients together queue at most
//! 1 + 1/2 + … + 1/k times the limits.

use std::time::Duration;

use super::{Arrival, Limits, Load, SEQUENCES, Scheduler, Sequence, TOKENS};
use crate::EngineError;

impl Scheduler {
    /// Refuses arrivals of a client if the queue has no room for them, or if so much work comes before them that they can't
    /// begin before their deadline. `left` is the time until then.
    pub(super) fn check_queue(
        &self,
        client: u64,
        arrivals: &[Arrival],
        left: Duration,
    ) -> Result<(), EngineError> {
        let Limits { sequences, queued_sequences, queued_tokens, .. } = self.limits;
        let Load { waiting, waiting_tokens, running, .. } = self.load;
        // Free places take sequences at once, so the queue can admit that many more.
        let free = sequences.saturating_sub(running);
        let tokens: usize = arrivals.iter().map(|arrival| arrival.prompt.len()).sum();
        let clients = self.clients.len() + usize::from(!self.clients.contains_key(&client));
        let (own, own_tokens) = self.waiting_of(client);
        let ahead = self.ahead(client, clients);
        let retry_after = Duration::from_secs_f64(ahead.unwrap_or(1.0).ceil().clamp(1.0, 60.0));
        for (waiting, own, given, limit, more, unit) in [
            (waiting, own, arrivals.len(), queued_sequences, free, SEQUENCES),
            (waiting_tokens, own_tokens, tokens, queued_tokens, 0, TOKENS),
        ] {
            let share = limit.div_ceil(clients).saturating_add(more);
            if waiting + given > limit.saturating_add(more) && own + given > share {
                return Err(EngineError::Overloaded { waiting: own, limit: share, unit, retry_after });
            }
        }
        // A sequence that can't begin before its deadline would only delay the others.
        if let Some(ahead) = ahead.filter(|&ahead| waiting > 0 && ahead > left.as_secs_f64()) {
            return Err(EngineError::Overloaded {
                waiting: ahead as usize,
                limit: left.as_secs() as usize,
                unit: "seconds of work",
                retry_after,
            });
        }
        Ok(())
    }

    /// The number of waiting sequences of a client, and of their prompt tokens.
    fn waiting_of(&self, client: u64) -> (usize, usize) {
        let sequences = self.sequences.values();
        let waiting = sequences.filter(|sequence| sequence.client == client && !sequence.running);
        waiting.fold((0, 0), |(count, tokens), sequence| (count + 1, tokens + sequence.prompt))
    }

    /// Estimated seconds of the admitted work before a new sequence of a client; `None` before the rate was measured.
    fn ahead(&self, client: u64, clients: usize) -> Option<f64> {
        let rate = self.rate?;
        let work = |sequence: &Sequence| {
            let expected = (sequence.max_tokens as f64 * self.used).ceil();
            sequence.rows() as f64 + (expected - sequence.generated() as f64).max(0.0)
        };
        let all: f64 = self.sequences.values().map(work).sum();
        let own: f64 = self.sequences.values().filter(|sequence| sequence.client == client).map(work).sum();
        // Free places go to the least served client, so each of the others gets about as much before it as this one.
        Some(all.min(own * clients as f64) / rate.max(1e-3))
    }
}
