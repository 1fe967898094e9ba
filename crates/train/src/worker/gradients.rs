//! Outer gradients on their way to the coordinator.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::TrainError;
use crate::client::{LeaseKey, Transfer};
use dipaco_path::OuterGradient;
use dipaco_protocol::{LeaseResult, PIECES_AT_ONCE};

/// Brings outer gradients as they come, several at a time, until there are no more; those of one fragment in their order,
/// in which they count.
pub(super) async fn upload_gradients(
    transfer: Arc<Transfer>,
    under: LeaseKey,
    mut gradients: mpsc::Receiver<OuterGradient>,
) -> Result<(), TrainError> {
    let mut under_way = JoinSet::new();
    let mut busy = BTreeSet::new();
    let mut next: Option<OuterGradient> = None;
    let mut more = true;
    loop {
        if let Some(gradient) =
            next.take_if(|next| under_way.len() < PIECES_AT_ONCE && !busy.contains(&next.send.fragment))
        {
            let OuterGradient { send, encoded, tokens } = gradient;
            busy.insert(send.fragment);
            let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens };
            let transfer = transfer.clone();
            under_way.spawn(async move {
                transfer.upload(under, item, encoded.into()).await.map(|()| send.fragment)
            });
        }
        tokio::select! {
            gradient = gradients.recv(), if more && next.is_none() => {
                more = gradient.is_some();
                next = gradient;
            }
            Some(brought) = under_way.join_next() => {
                busy.remove(&brought.map_err(|source| TrainError::Thread { source })??);
            }
            else => return Ok(()),
        }
    }
}
