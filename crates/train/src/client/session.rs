//! A worker's connection to the coordinator, kept alive over failures of the network and of the coordinator.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use dipaco_net::{Client, JoinToken, Limits, NetError};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::TrainError;
use dipaco_protocol::WorkerPlan;
use dipaco_protocol::{GrantedLease, RUN_COMPLETE, Request, Response};

/// The first pause before connecting again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a request without a payload may take.
pub const SHORT_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a good-bye may take: the lease that it gives back ends by itself otherwise.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request with a payload may take.
pub const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Who a worker is, and how it reaches the coordinator.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The join token.
    pub token: JoinToken,
    /// Name of the worker, unique in the run.
    pub worker: String,
    /// Random number of the process: tells it from an earlier process of the same name.
    pub instance: u64,
    /// How long to try when the coordinator can't be reached.
    pub patience: Duration,
}

/// A number that no other process of the run has: time and process number are enough among one name's processes.
pub(crate) fn instance() -> u64 {
    let now = SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&now.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// What there is to do.
pub enum LeaseOffer {
    /// A lease.
    Lease(Box<GrantedLease>),
    /// Nothing now, for this reason.
    Wait(String),
    /// Nothing any more, or nothing that follows.
    Finished,
}

/// A connection that has been welcomed, and is made again when it breaks. Calls may run at the same time.
pub struct Session {
    identity: Identity,
    /// Locked while a connection is being made: whoever has something to say waits for it.
    client: Mutex<Arc<Client>>,
    plan: WorkerPlan,
    cancel: CancellationToken,
}

impl Session {
    /// Connects and says hello.
    pub async fn open(identity: Identity, cancel: CancellationToken) -> Result<Self, TrainError> {
        let (client, plan) = connect(&identity, &cancel).await?;
        Ok(Self { identity, client: Mutex::new(client), plan, cancel })
    }

    /// The plan that the coordinator sent with its welcome.
    pub fn plan(&self) -> &WorkerPlan {
        &self.plan
    }

    /// A session of the same process with another one of the run.
    pub async fn with(&self, address: &str, patience: Duration) -> Result<Self, TrainError> {
        let mut identity = Identity { patience, ..self.identity.clone() };
        identity.token.addresses = vec![address.to_owned()];
        Self::open(identity, self.cancel.clone()).await
    }

    /// Waits until the worker is to stop.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// The connection as it is now, for what is said once at most.
    pub async fn client(&self) -> Arc<Client> {
        self.client.lock().await.clone()
    }

    /// Sends a request and returns the answer. When the connection breaks it is made again and the request repeated:
    /// every request of the protocol may be repeated.
    pub async fn call(
        &self,
        request: &Request,
        payload: Option<Bytes>,
        timeout: Duration,
    ) -> Result<Response, TrainError> {
        loop {
            let client = self.client().await;
            let call = client.call(request, payload.clone(), 0, timeout);
            if let Some((answer, _)) = self.attend(&client, call).await? {
                return Ok(answer);
            }
        }
    }

    /// [`Session::call`] with an answer whose payload arrives in the memory of `into`.
    pub async fn call_into(
        &self,
        request: &Request,
        into: &mut BytesMut,
        timeout: Duration,
    ) -> Result<Response, TrainError> {
        loop {
            let client = self.client().await;
            let call = client.call_into(request, into, timeout);
            if let Some(answer) = self.attend(&client, call).await? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the end of a call; `None` when its connection broke and there is another one.
    async fn attend<T>(
        &self,
        client: &Arc<Client>,
        call: impl Future<Output = Result<T, NetError>>,
    ) -> Result<Option<T>, TrainError> {
        let result = tokio::select! {
            result = call => result,
            () = self.cancel.cancelled() => return Err(TrainError::Cancelled),
        };
        match result {
            Ok(answer) => Ok(Some(answer)),
            Err(NetError::Closed { reason, .. }) if reason == RUN_COMPLETE => Err(TrainError::Complete),
            Err(error) if transient(&error) => self.connect_again(client, &error).await.map(|()| None),
            Err(error) => Err(error.into()),
        }
    }

    /// Asks for work.
    pub async fn ask(&self, request: &Request) -> Result<LeaseOffer, TrainError> {
        match self.call(request, None, SHORT_CALL_TIMEOUT).await? {
            Response::Lease(work) => Ok(LeaseOffer::Lease(work)),
            Response::Wait { reason } => Ok(LeaseOffer::Wait(reason)),
            Response::Finished => Ok(LeaseOffer::Finished),
            Response::Lost { reason } => Err(TrainError::LeaseLost { reason }),
            Response::Refused { reason } => Err(TrainError::Refused { reason }),
            _ => Err(TrainError::UnexpectedAnswer { request: "question for work" }),
        }
    }

    /// Replaces a connection that broke, unless another call has done so.
    async fn connect_again(&self, broken: &Arc<Client>, error: &NetError) -> Result<(), TrainError> {
        let mut client = self.client.lock().await;
        if !Arc::ptr_eq(broken, &client) {
            return Ok(());
        }
        tracing::warn!(%error, "the connection broke; connecting again");
        let (again, plan) = connect(&self.identity, &self.cancel).await?;
        if plan != self.plan {
            return Err(TrainError::PlanChanged);
        }
        *client = again;
        Ok(())
    }

    /// Closes the connection after the coordinator has had what was sent.
    pub async fn close(&self) {
        self.client().await.close("the worker stops").await;
    }
}

/// Connects until it works, the error is one that trying again does not mend, or patience ends.
async fn connect(
    identity: &Identity,
    cancel: &CancellationToken,
) -> Result<(Arc<Client>, WorkerPlan), TrainError> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let attempt = async {
            let client = Client::connect(&identity.token, SystemTime::now(), Limits::default()).await?;
            let hello = Request::Hello {
                worker: identity.worker.clone(),
                instance: identity.instance,
                version: env!("CARGO_PKG_VERSION").to_owned(),
            };
            let (answer, _) = client.call(&hello, None, 0, SHORT_CALL_TIMEOUT).await?;
            Ok::<(Client, Response), NetError>((client, answer))
        };
        let result = tokio::select! {
            result = attempt => result,
            () = cancel.cancelled() => return Err(TrainError::Cancelled),
        };
        match result {
            Ok((client, Response::Welcome { run, plan })) => {
                if run != identity.token.run_id {
                    return Err(TrainError::OtherRun { expected: identity.token.run_id.clone(), found: run });
                }
                let plan = WorkerPlan::from_json(&plan)?;
                return Ok((Arc::new(client), plan));
            }
            Ok((_, Response::Refused { reason })) => return Err(TrainError::Refused { reason }),
            Ok(_) => return Err(TrainError::UnexpectedAnswer { request: "hello" }),
            Err(error) if transient(&error) && begun.elapsed() + pause < identity.patience => {
                tracing::info!(%error, "the coordinator can't be reached; trying again");
                tokio::select! {
                    // A pause between attempts to connect; nothing tells when the coordinator is back.
                    () = tokio::time::sleep(pause) => {}
                    () = cancel.cancelled() => return Err(TrainError::Cancelled),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether trying again may help: the network or the coordinator failed, not what was asked.
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
