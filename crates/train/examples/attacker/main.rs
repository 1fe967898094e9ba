//! Attacks on a coordinator by strangers and by the holder of a token, and an honest peer that measures its waits
//! (`scripts/attack.py`).
//!
//! ```text
//! attacker TOKEN_FILE uploads SECONDS CONNECTIONS        many connections, each with 16 uploads that stop half-way
//! attacker TOKEN_FILE handshakes SECONDS EACH_MINUTE OWN handshakes that begin and never end; OWN of ten from 127.0.0.1
//! attacker TOKEN_FILE requests SECONDS CONNECTIONS       requests of all kinds with random fields
//! attacker TOKEN_FILE honest SECONDS                     takes leases and gives them back
//! ```
//!
//! It uses the product's own messages and transport. Each use prints a line of JSON at its end.

#![allow(clippy::print_stdout, reason = "its output is its result")]

mod honest;
mod random_requests;
#[allow(clippy::unwrap_used, reason = "helpers of tests")]
#[path = "../../tests/support/requests.rs"]
mod requests;
mod strangers;
mod uploads;

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_net::{Client, JoinToken, Limits, NetError};
use dipaco_path::{TrainDevice, numerics};
use dipaco_protocol::{GrantedLease, Request, Response, WorkerPlan};
use serde::Serialize;

type Failure = Box<dyn Error + Send + Sync>;

/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [token, kind, seconds, numbers @ ..] = words.as_slice() else {
        return Err("attacker TOKEN_FILE uploads|handshakes|requests|honest SECONDS …".into());
    };
    let token = JoinToken::read_from(Path::new(token))?;
    let duration = Duration::from_secs(seconds.parse()?);
    let numbers = numbers.iter().map(|word| word.parse()).collect::<Result<Vec<u32>, _>>()?;
    let found = match (kind.as_str(), numbers.as_slice()) {
        ("uploads", &[connections]) => uploads::stop_half_way(token, duration, connections).await?,
        ("handshakes", &[each_minute, own]) => {
            strangers::begin_handshakes(token, duration, each_minute, own).await?
        }
        ("requests", &[connections]) => random_requests::send(token, duration, connections).await?,
        ("honest", &[]) => honest::take_leases(token, duration).await?,
        _ => return Err(format!("no use of this program: {words:?}").into()),
    };
    println!("{found}");
    Ok(())
}

/// A welcomed connection.
struct Connected {
    client: Client,
    plan: WorkerPlan,
}

impl Connected {
    /// Joins under a name, as an honest worker on this machine would.
    async fn join(token: &JoinToken, name: &str, numerics: &str) -> Result<Self, Failure> {
        let client = Client::connect(token, SystemTime::now(), Limits::default()).await?;
        let hello = Request::Hello {
            worker: name.to_owned(),
            instance: u64::from(std::process::id()),
            version: dipaco_train::BUILD.to_owned(),
            numerics: numerics.to_owned(),
        };
        match client.call(&hello, None, 0, ANSWER).await? {
            (Response::Welcome { plan, .. }, _) => Ok(Self { client, plan: WorkerPlan::from_json(&plan)? }),
            (other, _) => Err(format!("no welcome but {other:?}").into()),
        }
    }

    /// Sends anything as a request.
    async fn ask(&self, request: &impl Serialize, payload: Option<Bytes>) -> Result<Response, NetError> {
        self.client.call(request, payload, 1 << 30, ANSWER).await.map(|(answer, _)| answer)
    }

    /// A lease, if one is there.
    async fn lease(&self) -> Result<Option<GrantedLease>, NetError> {
        let answer = self.ask(&Request::Lease { held: Vec::new(), wait_ms: 0 }, None).await?;
        Ok(if let Response::Lease(lease) = answer { Some(*lease) } else { None })
    }
}

/// The fingerprint that honest workers on this machine state.
fn own_numerics() -> Result<String, Failure> {
    Ok(numerics(&TrainDevice::Cpu)?)
}
