//! QUIC transport between a run's coordinator and its workers: identities, framing, transfers.
//!
//! A run has its own certificate authority ([`RunAuthority`]). The [`Server`] presents a certificate of this
//! authority. A worker joins with a [`JoinToken`]: a line of text with the addresses, the authority's certificate and
//! the worker's certificate. Both ends always verify each other, with TLS 1.3.
//!
//! Each operation is a bidirectional stream: a request header and an optional payload, then a response header and an
//! optional payload. A lost packet delays only its own transfer, and the response is the acknowledgement. A header is
//! any serde type (in postcard). The receiver checks its length before it allocates memory, and verifies its checksum.
//! The header gives the length of the payload, and the receiver compares it with its limit before it allocates memory.
//! TLS protects the payload on the way; the receiver verifies the hash of the whole object that the payload belongs
//! to.
//!
//! ```
//! # use std::time::{Duration, SystemTime};
//! # use dipaco_net::{Client, Limits, NetError, RunAuthority, Server};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), NetError> {
//! let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
//! let authority = RunAuthority::create("my-run", now)?;
//! let server = Server::bind("127.0.0.1:0".parse().unwrap(), &authority.server(now, day)?, Limits::default())?;
//! let token = authority.issue("worker", "a", vec![server.local_addr().to_string()], now, day)?;
//!
//! tokio::spawn(async move {
//!     while let Some(peer) = server.accept().await {
//!         while let Some(mut exchange) = peer.accept_exchange().await {
//!             let round: u64 = exchange.request().await?;
//!             let module = exchange.receive_payload(1 << 20).await?;
//!             exchange.respond(&(round + 1, module.len()), None).await?;
//!         }
//!     }
//!     Ok::<(), NetError>(())
//! });
//!
//! let client = Client::connect(&token, now, Limits::default()).await?;
//! let payload = Some("weights".into());
//! let ((round, length), _) = client.call::<u64, (u64, usize)>(&41, payload, 0, Duration::from_secs(10)).await?;
//! assert_eq!((round, length), (42, 7));
//! # Ok(())
//! # }
//! ```
//!
//! This package knows no model and no messages of training, stores nothing, and never reconnects by itself.

#![forbid(unsafe_code)]

mod admission;
mod authority;
mod certificate;
mod client;
mod clock;
mod error;
mod exchange;
mod fair_places;
mod first_success;
mod limits;
mod live_connections;
mod peer_connection;
mod plain;
mod printable;
mod rare_warning;
mod server;
mod tls;
mod token;
mod token_share;
mod traffic;
mod transport;
mod wire;

pub use authority::{RunAuthority, ServerIdentity};
pub use client::{Client, Service};
pub use clock::Clock;
pub use error::NetError;
pub use exchange::Exchange;
pub use limits::Limits;
pub use peer_connection::PeerConnection;
pub use printable::is_printable;
pub use rare_warning::RareWarning;
pub use server::{Server, TrafficSource};
pub use tls::{COORDINATOR_NAME, HELPER_NAME, PROTOCOL, check_token_name};
pub use token::{HelperToken, JoinToken};
pub use token_share::PeerMemory;
pub use traffic::Traffic;
