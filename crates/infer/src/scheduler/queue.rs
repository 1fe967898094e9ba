//! Which sequences find room in the queue.
//!
//! A client alone may fill the queue. In a full queue each client with sequences has an equal share, and it is refused only
//! when its own sequences fill its share. A client with few sequences therefore finds room. k clients together queue at most
//! 1 + 1/2 + … + 1/k times the limits.

use std::time::Duration;

use super::{Limits, Load, SEQUENCES, Scheduler, Sequence, TOKENS};
use crate::EngineError;

impl Scheduler {
    /// Refuses sequences of a client if the queue has no room for them, now or ever. `tokens` are those of their prompts, as
    /// far as they are known: what is refused with fewer is refused with more.
    pub(crate) fn check_queue(&self, client: u64, given: usize, tokens: usize) -> Result<(), EngineError> {
        let Limits { sequences, queued_sequences, queued_tokens, .. } = self.limits;
        let Load { waiting, waiting_tokens, running, .. } = self.load;
        let most = queued_sequences.saturating_add(sequences);
        for (given, limit, unit) in [(given, most, SEQUENCES), (tokens, queued_tokens, TOKENS)] {
            if given > limit {
                return Err(EngineError::TooLarge { given, limit, unit });
            }
        }
        // Free places take sequences at once, so the queue can admit that many more.
        let free = sequences.saturating_sub(running);
        let clients = self.clients_with(client);
        let (own, own_tokens) = self.waiting_of(client);
        for (waiting, own, given, limit, more, unit) in [
            (waiting, own, given, queued_sequences, free, SEQUENCES),
            (waiting_tokens, own_tokens, tokens, queued_tokens, 0, TOKENS),
        ] {
            let share = limit.div_ceil(clients).saturating_add(more);
            let full = waiting.saturating_add(given) > limit.saturating_add(more);
            if full && own.saturating_add(given) > share {
                let retry_after = retry_after(self.ahead(client));
                return Err(EngineError::Overloaded { waiting: own, limit: share, unit, retry_after });
            }
        }
        Ok(())
    }

    /// Refuses sequences of a client if so much work comes before them that they can't begin before their deadline: they would
    /// only delay the others. `left` is the time until then.
    pub(super) fn check_deadline(&self, client: u64, left: Duration) -> Result<(), EngineError> {
        match self.ahead(client) {
            Some(ahead) if self.load.waiting > 0 && ahead > left.as_secs_f64() => {
                Err(EngineError::Overloaded {
                    waiting: ahead as usize,
                    limit: left.as_secs() as usize,
                    unit: "seconds of work",
                    retry_after: retry_after(Some(ahead)),
                })
            }
            _ => Ok(()),
        }
    }

    /// Number of clients with sequences, this one included even if it has none.
    fn clients_with(&self, client: u64) -> usize {
        self.clients.len() + usize::from(!self.clients.contains_key(&client))
    }

    /// The number of waiting sequences of a client, and of their prompt tokens.
    fn waiting_of(&self, client: u64) -> (usize, usize) {
        let sequences = self.sequences.values();
        let waiting = sequences.filter(|sequence| sequence.client == client && !sequence.running);
        waiting.fold((0, 0), |(count, tokens), sequence| (count + 1, tokens + sequence.prompt))
    }

    /// Estimated seconds of the admitted work before a new sequence of a client; `None` before the rate was measured.
    fn ahead(&self, client: u64) -> Option<f64> {
        let rate = self.rate?;
        let work = |sequence: &Sequence| {
            let expected = (sequence.max_tokens as f64 * self.used).ceil();
            sequence.rows() as f64 + (expected - sequence.generated() as f64).max(0.0)
        };
        let all: f64 = self.sequences.values().map(work).sum();
        let own: f64 = self.sequences.values().filter(|sequence| sequence.client == client).map(work).sum();
        // Free places go to the least served client, so each of the others gets about as much before it as this one.
        Some(all.min(own * self.clients_with(client) as f64) / rate.max(1e-3))
    }
}

/// The time after which to try again, where so many seconds of work come before a new sequence.
fn retry_after(ahead: Option<f64>) -> Duration {
    Duration::from_secs_f64(ahead.unwrap_or(1.0).ceil().clamp(1.0, 60.0))
}
