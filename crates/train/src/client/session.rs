//! A session: a connection to the coordinator that survives failures of the network and of the coordinator.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use dipaco_net::{Client, Clock, HelperToken, JoinToken, Limits, NetError, ServerIdentity, Service};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::client::backoff::Backoff;
use crate::client::{ClientError, TokenSource};
use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{GrantedLease, RUN_COMPLETE, Request, Response};

/// Time that a request without a payload may take.
pub const SHORT_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the release of leases may take at the end. Without the release the leases end at their deadlines.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a request with a payload may take.
pub const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Name and token of a peer, and its patience with the coordinator.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The join token.
    pub token: JoinToken,
    /// Where the token is read again when the coordinator can't be reached: it may have moved.
    pub source: TokenSource,
    /// Name of the worker, unique in the run.
    pub worker: String,
    /// Random number of the process, which tells it from an earlier process of the same name.
    pub instance: u64,
    /// Time to keep trying while the coordinator can't be reached.
    pub patience: Duration,
    /// The time of day, for the token's life.
    pub clock: Clock,
    /// Fingerprint of the arithmetic of the device that trains.
    pub numerics: String,
    /// For a process that is itself a server: where its next identity as a server goes.
    pub server: Option<NextIdentity>,
}

/// The next identity of a server, from its renewal with the coordinator until the server takes it.
pub type NextIdentity = Arc<std::sync::Mutex<Option<ServerIdentity>>>;

/// A number that no other process of the run has or can guess: with it, a holder of the same token could end the process's
/// connection.
pub(crate) fn instance() -> u64 {
    rand::random()
}

/// Answer of the coordinator to a request for a lease.
pub enum LeaseOffer {
    /// A lease.
    Lease(Box<GrantedLease>),
    /// No lease now, for this reason.
    Wait(String),
    /// No lease for this device now, for this reason.
    Unfit(String),
    /// The run is complete, or no lease follows.
    Finished,
}

/// Time after which a server's failed renewal is tried again at the latest. Its certificate may end before its token.
const SERVER_RETRY: Duration = Duration::from_secs(3600);

/// A welcomed connection, which is made again when it breaks. Calls may run concurrently.
pub struct Session {
    /// The server that this session is with.
    service: Service,
    /// Changes when the token is renewed.
    identity: std::sync::Mutex<Identity>,
    /// Locked during a renewal.
    renewal: Mutex<TokenRenewal>,
    /// Locked while a connection is made, so that all calls wait for the new connection.
    client: Mutex<Arc<Client>>,
    plan: WorkerPlan,
    cancel: CancellationToken,
}

/// When the token is renewed.
struct TokenRenewal {
    /// The time of the last renewal, or of the attempt at it.
    last: SystemTime,
    /// The time from which on the token is renewed again.
    next: SystemTime,
}

impl TokenRenewal {
    /// The renewal after `now`.
    fn of(token: &JoinToken, now: SystemTime) -> Self {
        Self { last: now, next: token.renew_at(now) }
    }
}

impl Session {
    /// Connects and sends the hello.
    pub async fn open(identity: Identity, cancel: CancellationToken) -> Result<Self, ClientError> {
        Self::open_with(Service::Coordinator, identity, cancel).await
    }

    async fn open_with(
        service: Service,
        mut identity: Identity,
        cancel: CancellationToken,
    ) -> Result<Self, ClientError> {
        let Connected { client, plan, token } = connect(service, &identity, &cancel, transient).await?;
        identity.token = token;
        let renewal = Mutex::new(TokenRenewal::of(&identity.token, identity.clock.now()));
        Ok(Self {
            service,
            identity: std::sync::Mutex::new(identity),
            renewal,
            client: Mutex::new(client),
            plan,
            cancel,
        })
    }

    /// Renews the token by this time at the latest. A process that is itself a server gets its next identity with the token.
    pub(crate) fn renew_by(&mut self, time: SystemTime) {
        let renewal = self.renewal.get_mut();
        renewal.next = renewal.next.min(time);
    }

    fn identity(&self) -> Identity {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The plan that the coordinator sent with its welcome.
    pub fn plan(&self) -> &WorkerPlan {
        &self.plan
    }

    /// A session of the same process with another peer of the run, at `address`.
    pub async fn with(&self, address: &str, patience: Duration) -> Result<Self, ClientError> {
        let mut identity = Identity { patience, ..self.identity() };
        identity.token.addresses = vec![address.to_owned()];
        Self::open_with(Service::Helper, identity, self.cancel.clone()).await
    }

    /// Gets a new token over the live connection when half of the token's life is over. Without it no connection could be
    /// made after the token's expiry. A failed renewal is tried again when half of the rest is over, and that of a
    /// server within [`SERVER_RETRY`]. A token of a clock that has been set back is renewed, too: it may not be valid
    /// yet.
    async fn renew_if_due(&self) {
        if self.service != Service::Coordinator {
            return;
        }
        // Another call renews the token.
        let Ok(mut renewal) = self.renewal.try_lock() else { return };
        let identity = self.identity();
        let now = identity.clock.now();
        if now < renewal.next && !identity.clock.set_back_since(renewal.last) {
            return;
        }
        let renewed = self.renew(&identity).await;
        let retries_soon = renewed.is_err() && identity.server.is_some();
        let token = renewed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the join token can't be renewed");
            identity.token
        });
        *renewal = TokenRenewal::of(&token, now);
        if retries_soon {
            renewal.next = renewal.next.min(now + SERVER_RETRY);
        }
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).token = token;
    }

    async fn renew(&self, identity: &Identity) -> Result<JoinToken, ClientError> {
        let client = self.client().await;
        let (answer, _) = client.call(&Request::Renew, None, 0, SHORT_CALL_TIMEOUT).await?;
        let text = match answer {
            Response::Renewed { token } => token,
            Response::Refused { reason } => return Err(ClientError::Refused { reason }),
            _ => return Err(ClientError::UnexpectedAnswer { request: "Renew" }),
        };
        let Some(next) = &identity.server else {
            return Ok(identity.token.clone().renewed(text.parse()?));
        };
        let HelperToken { join, server } = text.parse()?;
        *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        Ok(identity.token.clone().renewed(join))
    }

    /// Waits until the user asks the process to stop.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// The current connection, for requests that are not repeated.
    pub async fn client(&self) -> Arc<Client> {
        self.client.lock().await.clone()
    }

    /// Sends a request and returns the answer. When the connection breaks, the session connects again and repeats the
    /// request: every request of the protocol may be repeated.
    pub async fn call(
        &self,
        request: &Request,
        payload: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Response, ClientError> {
        self.renew_if_due().await;
        loop {
            let client = self.client().await;
            let call = client.call(request, payload.clone(), 0, timeout);
            if let Some((answer, _)) = self.attend(&client, call).await? {
                return Ok(answer);
            }
        }
    }

    /// [`Session::call`] for an answer whose payload arrives in the memory of `into`.
    pub async fn call_into(
        &self,
        request: &Request,
        into: &mut BytesMut,
        timeout: Duration,
    ) -> Result<Response, ClientError> {
        loop {
            let client = self.client().await;
            let call = client.call_into(request, into, timeout);
            if let Some(answer) = self.attend(&client, call).await? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the end of a call. Returns `None` if the connection broke and the session has connected again.
    async fn attend<T>(
        &self,
        client: &Arc<Client>,
        call: impl Future<Output = Result<T, NetError>>,
    ) -> Result<Option<T>, ClientError> {
        let result = tokio::select! {
            result = call => result,
            () = self.cancel.cancelled() => return Err(ClientError::cancelled()),
        };
        match result {
            Ok(answer) => Ok(Some(answer)),
            Err(NetError::Closed { reason, .. }) if reason == RUN_COMPLETE => Err(ClientError::Complete),
            Err(error) if transient(&error) => self.connect_again(client, &error).await.map(|()| None),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks for a lease.
    pub async fn ask(&self, request: &Request) -> Result<LeaseOffer, ClientError> {
        match self.call(request, None, SHORT_CALL_TIMEOUT).await? {
            Response::Lease(lease) => Ok(LeaseOffer::Lease(lease)),
            Response::Wait { reason } => Ok(LeaseOffer::Wait(reason)),
            Response::Unfit { reason } => Ok(LeaseOffer::Unfit(reason)),
            Response::Finished => Ok(LeaseOffer::Finished),
            Response::Lost { reason } => Err(ClientError::LeaseLost { reason }),
            Response::Refused { reason } => Err(ClientError::Refused { reason }),
            _ => Err(ClientError::UnexpectedAnswer { request: "lease" }),
        }
    }

    /// Replaces a broken connection, unless another call has replaced it.
    async fn connect_again(&self, broken: &Arc<Client>, error: &NetError) -> Result<(), ClientError> {
        let mut client = self.client.lock().await;
        if !Arc::ptr_eq(broken, &client) {
            return Ok(());
        }
        tracing::warn!(%error, "the connection broke; connecting again");
        // The address was right. A foreign server there means that the coordinator has moved.
        let may_pass = |error: &NetError| transient(error) || error.is_of_a_foreign_server();
        let again = connect(self.service, &self.identity(), &self.cancel, may_pass).await?;
        if again.plan != self.plan {
            return Err(ClientError::PlanChanged);
        }
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).token = again.token;
        *client = again.client;
        Ok(())
    }

    /// Closes the connection after the coordinator has received all that was sent.
    pub async fn close(&self) {
        self.client().await.close("the worker stops").await;
    }
}

/// A welcomed connection, the plan of the welcome, and the token that it was made with.
struct Connected {
    client: Arc<Client>,
    plan: WorkerPlan,
    token: JoinToken,
}

/// Connects again and again until it works, an error does not pass by itself, or the patience ends. A coordinator that can't be
/// reached may have moved, so the token is read again at its source after each attempt.
async fn connect(
    service: Service,
    identity: &Identity,
    cancel: &CancellationToken,
    may_pass: impl Fn(&NetError) -> bool,
) -> Result<Connected, ClientError> {
    let begun = Instant::now();
    let mut token = identity.token.clone();
    let mut backoff = Backoff::default();
    loop {
        let attempt = async {
            let client = Client::connect_to(service, &token, identity.clock.now(), Limits::default()).await?;
            let hello = Request::Hello {
                worker: identity.worker.clone(),
                instance: identity.instance,
                version: crate::BUILD.to_owned(),
                numerics: identity.numerics.clone(),
            };
            let (answer, _) = client.call(&hello, None, 0, SHORT_CALL_TIMEOUT).await?;
            Ok::<(Client, Response), NetError>((client, answer))
        };
        let result = tokio::select! {
            result = attempt => result,
            () = cancel.cancelled() => return Err(ClientError::cancelled()),
        };
        match result {
            Ok((client, Response::Welcome { run, plan })) => {
                if run != token.run_id {
                    return Err(ClientError::OtherRun { expected: token.run_id, found: run });
                }
                let plan = WorkerPlan::from_json(&plan)?;
                if service == Service::Coordinator {
                    tracing::info!(run, addresses = ?token.addresses, "connected to the coordinator");
                }
                return Ok(Connected { client: Arc::new(client), plan, token });
            }
            Ok((_, Response::Refused { reason })) => return Err(ClientError::Refused { reason }),
            Ok(_) => return Err(ClientError::UnexpectedAnswer { request: "hello" }),
            Err(error) if may_pass(&error) && begun.elapsed() + backoff.next() < identity.patience => {
                tracing::info!(%error, "the coordinator can't be reached; trying again");
                if service == Service::Coordinator
                    && let Some(newer) = newer_token(identity, &token, cancel).await?
                {
                    tracing::info!(addresses = ?newer.addresses, "the token has been written again");
                    token = newer;
                    backoff = Backoff::default();
                }
                backoff.pause(cancel.cancelled()).await?;
            }
            Err(error) if may_pass(&error) && service == Service::Coordinator => {
                let seconds = identity.patience.as_secs();
                return Err(ClientError::Unreachable { seconds, source: Box::new(error) });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The token at its source, if it is newer than `token`.
async fn newer_token(
    identity: &Identity,
    token: &JoinToken,
    cancel: &CancellationToken,
) -> Result<Option<JoinToken>, ClientError> {
    let (source, known) = (identity.source.clone(), token.clone());
    tokio::select! {
        newer = blocking(move || source.newer(&known)) => Ok(newer?),
        () = cancel.cancelled() => Err(ClientError::cancelled()),
    }
}

/// Returns whether another attempt may help: the network or the coordinator failed, and not the request.
fn transient(error: &NetError) -> bool {
    matches!(
        error,
        NetError::Connect { .. }
            | NetError::Busy { .. }
            | NetError::Timeout { .. }
            | NetError::Closed { .. }
            | NetError::Lost { .. }
            | NetError::Abandoned { .. }
    )
}
