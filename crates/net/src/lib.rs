//! QUIC transport between a run's coordinator and its workers: identities, framing, transfers.
//!
//! A run has its own certificate authority ([`RunAuthority`]). The [`Server`] shows a certificate of it, and a worker
//! joins with a [`JoinToken`]: one line of text with the addresses, the authority's certificate and a certificate of
//! its own. Both ends verify each other, always, with TLS 1.3.
//!
//! Each operation is one bidirectional stream: a request header and perhaps a payload one way, a response header and
//! perhaps a payload back. A lost packet of one transfer holds up no other, and the response is the acknowledgement.
//! Headers are any serde types (in postcard); their length is bounded before memory is allocated, and a checksum
//! covers them. A payload's length stands in the header, and is held against what the receiver is ready for before
//! anything is allocated. TLS guards it on the way; what it is a part of is verified by who knows the hash of the whole.
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
//! This package knows no model and no protocol of rounds, keeps nothing, and never reconnects by itself.

mod authority;
mod client;
mod error;
mod exchange;
mod limits;
mod plain;
mod server;
mod tls;
mod token;
mod traffic;
mod transport;
mod wire;

pub use authority::{RunAuthority, ServerIdentity};
pub use client::Client;
pub use error::NetError;
pub use exchange::Exchange;
pub use limits::Limits;
pub use server::{PeerConnection, Server};
pub use tls::{COORDINATOR_NAME, PROTOCOL};
pub use token::JoinToken;
pub use traffic::Traffic;
