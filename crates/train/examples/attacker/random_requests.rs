//! Requests of all kinds with random fields.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use dipaco_fuzz::rand::{Rng, SeedableRng};
use dipaco_fuzz::{CaseRng, damage};
use dipaco_net::{JoinToken, NetError};
use dipaco_protocol::{GrantedLease, PIECE_BYTES, Request, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::requests::{RawRequest, any_request, at_once};
use crate::{Connected, Failure, own_numerics};

/// Counts by the kind of a request or an answer.
type Counts = BTreeMap<String, u64>;

/// Sends random requests over so many connections, each as fast as it gets answers.
pub(crate) async fn send(token: JoinToken, duration: Duration, connections: u32) -> Result<Value, Failure> {
    let numerics = own_numerics()?;
    let until = Instant::now() + duration;
    let mut liars = JoinSet::new();
    for number in 0..connections {
        let mut liar = Liar {
            token: token.clone(),
            numerics: numerics.clone(),
            name: format!("liar-{number}"),
            rng: CaseRng::seed_from_u64(number.into()),
            sent: Counts::new(),
            answers: Counts::new(),
        };
        liars.spawn(async move { liar.lie(until).await.map(|()| liar) });
    }
    let (mut sent, mut answers) = (Counts::new(), Counts::new());
    while let Some(liar) = liars.join_next().await {
        let liar = liar??;
        liar.sent.into_iter().for_each(|(kind, count)| *sent.entry(kind).or_default() += count);
        liar.answers.into_iter().for_each(|(kind, count)| *answers.entry(kind).or_default() += count);
    }
    Ok(json!({ "requests": sent.values().sum::<u64>(), "sent": sent, "answers": answers }))
}

struct Liar {
    token: JoinToken,
    numerics: String,
    name: String,
    rng: CaseRng,
    sent: Counts,
    answers: Counts,
}

impl Liar {
    async fn lie(&mut self, until: Instant) -> Result<(), Failure> {
        let mut lease = None;
        while Instant::now() < until {
            let peer = match Connected::join(&self.token, &self.name, &self.numerics).await {
                Ok(peer) => peer,
                // A coordinator that is still busy with the end of the last connection.
                Err(error) if error.downcast_ref::<NetError>().is_some() => {
                    self.count_answer("no connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            while Instant::now() < until {
                if lease.is_none() || self.rng.random_bool(0.05) {
                    let Ok(newer) = peer.lease().await else { break };
                    lease = newer.or(lease);
                }
                let Some(lease) = &lease else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                if !self.lie_once(&peer, lease).await {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends one request. Returns whether the connection lives.
    async fn lie_once(&mut self, peer: &Connected, lease: &GrantedLease) -> bool {
        let rng = &mut self.rng;
        let diverged = Request::Diverged { lease: lease.key(), step: lease.from };
        let request = if rng.random_bool(0.01) { diverged } else { any_request(rng, lease) };
        let valid = postcard::to_stdvec(&request);
        let other = postcard::to_stdvec(&any_request(rng, lease));
        let (Ok(valid), Ok(other)) = (valid, other) else { return true };
        let bytes = if rng.random_bool(0.1) { valid } else { damage(rng, &valid, &other) };
        let request = postcard::from_bytes::<Request>(&bytes).ok().map(at_once);
        let length = if rng.random_bool(0.01) { PIECE_BYTES as usize } else { rng.random_range(0..4096) };
        let payload = rng.random_bool(0.5).then(|| Bytes::from(vec![7; length]));
        let kind = request.as_ref().map_or("bytes".to_owned(), |request| kind(&format!("{request:?}")));
        *self.sent.entry(kind).or_default() += 1;
        let answered = match request {
            Some(request) => peer.ask(&request, payload).await,
            None => peer.ask(&RawRequest(&bytes), payload).await,
        };
        match answered {
            Ok(Response::Renewed { .. }) => self.count_answer("Renewed"),
            Ok(answer) => self.count_answer(&kind_of(&answer)),
            Err(NetError::Refused { .. } | NetError::Abandoned { .. }) => self.count_answer("refused by net"),
            Err(NetError::Timeout { .. }) => self.count_answer("no answer in a minute"),
            Err(_) => {
                self.count_answer("connection closed");
                return false;
            }
        }
        true
    }

    fn count_answer(&mut self, kind: &str) {
        *self.answers.entry(kind.to_owned()).or_default() += 1;
    }
}

fn kind_of(answer: &Response) -> String {
    kind(&format!("{answer:?}"))
}

/// The first word of a value's text: the name of its variant.
fn kind(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric()).collect()
}
