//! Uploads of outer gradients.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::WorkerError;
use crate::client::{ClientError, LeaseKey, Transfer};
use dipaco_path::OuterGradient;
use dipaco_protocol::{LeaseResult, PIECES_AT_ONCE};

/// Uploads the outer gradients of a queue, several at a time, until the queue is closed and empty. The gradients of one
/// fragment are uploaded one after the other, because they count in their order.
pub(super) async fn upload_gradients(
    transfer: Arc<Transfer>,
    lease: LeaseKey,
    mut queue: mpsc::Receiver<OuterGradient>,
) -> Result<(), WorkerError> {
    let mut in_flight = JoinSet::new();
    // Fragments with an upload in flight.
    let mut busy = BTreeSet::new();
    let mut next: Option<OuterGradient> = None;
    let mut open = true;
    loop {
        if let Some(gradient) =
            next.take_if(|next| in_flight.len() < PIECES_AT_ONCE && !busy.contains(&next.send.fragment))
        {
            let OuterGradient { send, encoded, tokens } = gradient;
            busy.insert(send.fragment);
            let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens };
            let transfer = transfer.clone();
            in_flight.spawn(async move {
                transfer.upload(lease, item, encoded).await?;
                Ok::<_, ClientError>(send.fragment)
            });
        }
        tokio::select! {
            // Only while no gradient waits for its turn: a later gradient must not overtake it.
            gradient = queue.recv(), if open && next.is_none() => {
                open = gradient.is_some();
                next = gradient;
            }
            // A finished upload frees its fragment, which the waiting gradient may need.
            Some(uploaded) = in_flight.join_next() => {
                busy.remove(&uploaded??);
            }
            // The queue is closed and nothing is in flight. A gradient can't be waiting: it would have been taken above.
            else => return Ok(()),
        }
    }
}
