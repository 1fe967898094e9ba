//! Errors of the transport.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::tls::PROTOCOL;

/// An error of the transport. The message names the peer or the address, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// Can't listen on the address.
    #[error("can't listen on UDP {address}: choose another port, or stop the program that uses it")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A name or a limit is invalid.
    #[error("{what} `{value}` is invalid: {reason}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// The value.
        value: String,
        /// Reason why it is invalid.
        reason: &'static str,
    },
    /// An operation on a key or a certificate failed.
    #[error("can't {what}: {reason}")]
    Identity {
        /// The failed operation.
        what: &'static str,
        /// Reason of the failure.
        reason: String,
    },
    /// The text is not a run authority.
    #[error(
        "this is not the authority of a run: {reason}; restore the file, or start a new run and issue new tokens"
    )]
    Authority {
        /// Reason why it is invalid.
        reason: String,
    },
    /// The text is not a token of the wanted kind.
    #[error("this is no {name}: {reason}; copy the whole file {file} of the coordinator's run")]
    Token {
        /// The wanted kind.
        name: &'static str,
        /// Reason why it is invalid.
        reason: String,
        /// The file with a token of the wanted kind.
        file: &'static str,
    },
    /// The file of a token can't be read.
    #[error("can't read a {name} from `{}`: give the file {file} of the coordinator's run directory", path.display())]
    TokenFile {
        /// The wanted kind.
        name: &'static str,
        /// The file that can't be read.
        path: PathBuf,
        /// The file with a token of the wanted kind.
        file: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The join token has expired.
    #[error(
        "the join token of run `{run_id}` expired on {expired}: ask the coordinator for a new one (and check this machine's clock)"
    )]
    Expired {
        /// Run of the token.
        run_id: String,
        /// Time of expiry, in UTC.
        expired: String,
    },
    /// The two ends do not belong to the same run.
    #[error(
        "the coordinator at {address} and this token (run `{run_id}`) do not belong together: {reason}; use a token that this coordinator issued"
    )]
    WrongToken {
        /// Address of the coordinator.
        address: String,
        /// Run of the token.
        run_id: String,
        /// The end that refused, and its reason.
        reason: String,
    },
    /// The other end has another version of the protocol.
    #[error(
        "the coordinator at {address} has another protocol version than this program ({PROTOCOL}): use the same version of the program on both ends"
    )]
    Version {
        /// Address of the coordinator.
        address: String,
    },
    /// No address of the token answers.
    #[error(
        "can't connect to the coordinator of run `{run_id}`: {attempts}; check that it runs, that the address is correct and that no firewall blocks UDP"
    )]
    Connect {
        /// Run of the token.
        run_id: String,
        /// All addresses, each with its failure.
        attempts: String,
    },
    /// The server has reached its limit of peers.
    #[error("{peer} has reached its limit of peers: stop some workers, or raise the limit")]
    Busy {
        /// The server.
        peer: String,
    },
    /// The server refuses the peer's token.
    #[error("{peer} has revoked the token: ask the operator of the run for another token")]
    Revoked {
        /// The server.
        peer: String,
    },
    /// A time limit has passed.
    #[error("{peer} took longer than {} s to {what}", after.as_secs_f64())]
    Timeout {
        /// The other end.
        peer: String,
        /// The operation that did not end in time.
        what: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The other end closed the connection in order.
    #[error("{peer} closed the connection: {reason}")]
    Closed {
        /// The other end.
        peer: String,
        /// Its reason.
        reason: String,
    },
    /// The connection broke: the process was killed, the network is down.
    #[error("the connection to {peer} was lost: connect again")]
    Lost {
        /// The other end.
        peer: String,
        /// Error of the connection.
        #[source]
        source: Box<quinn::ConnectionError>,
    },
    /// The other end gave up an operation. The connection is intact.
    #[error("{peer} gave up the operation before its {what} was complete")]
    Abandoned {
        /// The other end.
        peer: String,
        /// The part of the operation in transfer.
        what: &'static str,
    },
    /// The other end refused the operation with a reason.
    #[error("{peer} refused: {message}")]
    Refused {
        /// The other end.
        peer: String,
        /// Its reason.
        message: String,
    },
    /// A length is over the limit. No memory was allocated for it.
    #[error("the {what} of {peer} has {bytes} bytes, more than the limit of {limit}")]
    TooLarge {
        /// The other end.
        peer: String,
        /// The part that is too large.
        what: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// There is not enough memory for a payload.
    #[error("there is not enough memory for the {bytes} bytes of a payload from {peer}")]
    Memory {
        /// The other end.
        peer: String,
        /// Length of the payload in bytes.
        bytes: u64,
    },
    /// A header does not match its checksum.
    #[error(
        "the {what} of {peer} arrived damaged: try again, and check that both ends have the same version"
    )]
    Damaged {
        /// The other end.
        peer: String,
        /// The damaged part.
        what: &'static str,
    },
    /// A header does not decode as the expected message.
    #[error(
        "the {what} of {peer} is not a message of this protocol: use the same version of the program on both ends"
    )]
    Message {
        /// The other end.
        peer: String,
        /// The header.
        what: &'static str,
        /// Error of the decoder.
        #[source]
        source: postcard::Error,
    },
    /// An expected payload is absent, or the reverse.
    #[error("{peer} sent {found} payload where {expected} is expected")]
    Payload {
        /// The other end.
        peer: String,
        /// Actual payload.
        found: &'static str,
        /// Expected payload.
        expected: &'static str,
    },
    /// The operation already has an answer, for example a refusal.
    #[error("the operation of {peer} has an answer already")]
    Answered {
        /// The other end.
        peer: String,
    },
}

impl NetError {
    /// True if the server at an address is of another run, or of another version. Where a coordinator has moved away, anybody may
    /// listen.
    #[must_use]
    pub fn is_of_a_foreign_server(&self) -> bool {
        matches!(self, Self::WrongToken { .. } | Self::Version { .. })
    }
}
