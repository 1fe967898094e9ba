//! The events of all choices of a request, in the order of their arrival.

use std::collections::VecDeque;
use std::pin::Pin;

use dipaco_infer::{EngineError, Event, Generation};
use dipaco_topology::PathId;
use futures::stream::{SelectAll, Stream, StreamExt};
use tokio_util::sync::CancellationToken;

/// The events of one choice, each with the index of the choice.
type ChoiceEvents = Pin<Box<dyn Stream<Item = (usize, Event)> + Send>>;

/// Events of several choices, each with the index of its choice. Dropping it cancels all choices.
pub(crate) struct Source {
    events: SelectAll<ChoiceEvents>,
    /// Events that were received but not returned yet.
    seen: VecDeque<(usize, Event)>,
    abort: CancellationToken,
}

impl Source {
    pub(crate) fn new(generations: Vec<Generation>, abort: CancellationToken) -> Self {
        let events = generations.into_iter().enumerate().map(|(choice, generation)| {
            let next = move |mut generation: Generation| async move {
                let event = generation.next().await?;
                Some(((choice, event), generation))
            };
            futures::stream::unfold(generation, next).boxed()
        });
        Self { events: futures::stream::select_all(events), seen: VecDeque::new(), abort }
    }

    /// The next event; `None` when all choices have ended.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event)> {
        if let Some(event) = self.seen.pop_front() {
            return Some(event);
        }
        tokio::select! {
            biased;
            event = self.events.next() => event,
            () = self.abort.cancelled() => Some((0, Event::Failed(EngineError::ShuttingDown))),
        }
    }

    /// Waits for the first event, which starts a choice. `next` still returns this event.
    pub(crate) async fn wait_for_start(&mut self) -> Result<(), EngineError> {
        match self.next().await {
            Some((_, Event::Failed(error))) => Err(error),
            Some(event) => {
                self.seen.push_back(event);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The path of the choice that [`wait_for_start`](Self::wait_for_start) waited for.
    pub(crate) fn first_path(&self) -> Option<PathId> {
        match self.seen.front() {
            Some((_, Event::Started { path, .. })) => Some(*path),
            _ => None,
        }
    }
}
