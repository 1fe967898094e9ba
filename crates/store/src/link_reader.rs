//! Reads objects through links, without the store's credentials.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use bytes::BytesMut;
use reqwest::{Client, StatusCode, header};

use crate::remote::set_cryptography;

/// Longest time to connect: a store that workers can't reach shall cost them little.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Longest time in which nothing arrives.
const STALL_LIMIT: Duration = Duration::from_secs(30);
/// The least rate at which a read may go on beyond [`STALL_LIMIT`], as for every transfer between the processes of a run.
const SLOWEST_BYTES_PER_SECOND: u64 = 8 << 10;

/// An error of a read through a link. No message holds the link, because a link is a right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no HTTP client.
    #[error("this machine can't make HTTPS connections: {cause}; install the certificates of the system")]
    Client {
        /// The innermost cause.
        cause: String,
    },
    /// No connection, or a time limit is over.
    #[error("the store can't be reached from this machine: {cause}")]
    Unreachable {
        /// The innermost cause.
        cause: String,
    },
    /// The transfer broke off.
    #[error("the transfer from the store broke off: {cause}")]
    Broken {
        /// The innermost cause.
        cause: String,
    },
    /// The store answers with another status than that of a part of an object.
    #[error("the store answers with the HTTP status {status}")]
    Refused {
        /// The status.
        status: u16,
    },
    /// The store sends other bytes than the object has.
    #[error("the store sends other bytes than the object has")]
    OtherContent,
}

impl LinkError {
    /// True if other reads will meet the same error soon. A broken line, a busy store and a deleted object concern one read.
    #[must_use]
    pub fn lasts(&self) -> bool {
        match self {
            Self::Client { .. } | Self::Unreachable { .. } | Self::OtherContent => true,
            Self::Broken { .. } => false,
            Self::Refused { status } => !matches!(*status, 404 | 408 | 429 | 500..),
        }
    }

    fn of(error: reqwest::Error) -> Self {
        let lasts = error.is_connect() || error.is_timeout() || error.is_builder();
        let cause = innermost(error);
        if lasts { Self::Unreachable { cause } } else { Self::Broken { cause } }
    }
}

/// The innermost cause, without the address.
fn innermost(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Reads parts of objects through links. It follows no redirections, and sends nothing but the request.
#[derive(Clone, Debug)]
pub struct LinkReader {
    client: Client,
}

impl LinkReader {
    /// A reader with its own connections.
    ///
    /// # Errors
    /// [`LinkError::Client`] without certificates of the system.
    pub fn new() -> Result<Self, LinkError> {
        set_cryptography();
        let client = Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(STALL_LIMIT)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .build();
        Ok(Self { client: client.map_err(|error| LinkError::Client { cause: innermost(error) })? })
    }

    /// Reads `range` of the object behind a link in place of the content of `into`, and never more than that. The time
    /// limit is 30 seconds plus a second for each 8 KiB.
    ///
    /// # Errors
    /// When the store can't be reached, refuses, or sends another number of bytes; the content of `into` is then undefined.
    pub async fn read(&self, link: &str, range: Range<u64>, into: &mut BytesMut) -> Result<(), LinkError> {
        into.clear();
        let length = range.end.saturating_sub(range.start);
        let limit = STALL_LIMIT + Duration::from_secs(length / SLOWEST_BYTES_PER_SECOND);
        let part = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let request = self.client.get(link).header(header::RANGE, part).timeout(limit);
        let mut answer = request.send().await.map_err(LinkError::of)?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err(LinkError::Refused { status: answer.status().as_u16() });
        }
        while let Some(bytes) = answer.chunk().await.map_err(LinkError::of)? {
            if (into.len() + bytes.len()) as u64 > length {
                return Err(LinkError::OtherContent);
            }
            into.extend_from_slice(&bytes);
        }
        if into.len() as u64 == length { Ok(()) } else { Err(LinkError::OtherContent) }
    }
}
