//! Attempts of which the first success counts.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

/// Time after which the next attempt begins beside those before it (RFC 8305, section 5).
const DELAY: Duration = Duration::from_millis(250);

/// Begins the attempts one after the other, each a moment after the one before it or as soon as one has failed. The first
/// success drops the others. An attempt sets `answered` when its success is likely: the next one then begins only after
/// a failure.
///
/// # Errors
/// Those of all attempts, in the order in which they failed.
pub(crate) async fn first_success<T, E>(
    attempts: Vec<impl Future<Output = Result<T, E>>>,
    answered: &AtomicBool,
) -> Result<T, Vec<E>> {
    let (mut waiting, mut running, mut errors) = (attempts.into_iter(), Vec::new(), Vec::new());
    loop {
        if !answered.load(Ordering::Relaxed)
            && let Some(attempt) = waiting.next()
        {
            running.push(Box::pin(attempt));
        }
        if running.is_empty() {
            return Err(errors);
        }
        let next_end = poll_fn(|context| {
            let mut polled = running.iter_mut().map(|attempt| attempt.as_mut().poll(context)).enumerate();
            let ended = polled.find_map(|(place, poll)| match poll {
                Poll::Ready(end) => Some((place, end)),
                Poll::Pending => None,
            });
            let Some((place, end)) = ended else { return Poll::Pending };
            drop(running.swap_remove(place));
            Poll::Ready(end)
        });
        let longest = if waiting.as_slice().is_empty() { Duration::MAX } else { DELAY };
        match timeout(longest, next_end).await {
            Ok(Ok(success)) => return Ok(success),
            Ok(Err(error)) => {
                errors.push(error);
                // This attempt may have set it.
                answered.store(false, Ordering::Relaxed);
            }
            // It is the turn of the next attempt.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// An attempt that never ends, without an outcome.
    async fn attempt(outcome: Option<Result<u8, u8>>) -> Result<u8, u8> {
        match outcome {
            Some(outcome) => outcome,
            None => pending().await,
        }
    }

    #[tokio::test]
    async fn the_first_success_counts_whatever_the_others_do() {
        for (outcomes, expected) in [
            (vec![None, Some(Ok(1))], Ok(1)),
            (vec![Some(Err(1)), None, Some(Ok(2)), Some(Ok(3))], Ok(2)),
            (vec![Some(Err(1)), Some(Err(2))], Err(vec![1, 2])),
            (Vec::new(), Err(Vec::new())),
        ] {
            let attempts = outcomes.into_iter().map(attempt).collect();
            assert_eq!(first_success(attempts, &AtomicBool::new(false)).await, expected);
        }
    }

    #[tokio::test]
    async fn an_attempt_with_an_answer_holds_the_next_ones_back_until_it_fails() {
        let answered = AtomicBool::new(false);
        let with_answer = |outcome, answers| {
            let answered = &answered;
            async move {
                answered.store(answers, Ordering::Relaxed);
                attempt(outcome).await
            }
        };
        let attempts = vec![with_answer(None, true), with_answer(Some(Ok(1)), false)];
        assert!(timeout(DELAY * 2, first_success(attempts, &answered)).await.is_err());
        answered.store(false, Ordering::Relaxed);
        let outcomes = [(Some(Err(1)), true), (None, false), (Some(Ok(2)), false)];
        let attempts = outcomes.into_iter().map(|(outcome, answers)| with_answer(outcome, answers)).collect();
        assert_eq!(first_success(attempts, &answered).await, Ok(2));
    }
}
