//! What can go wrong on the wire.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::tls::PROTOCOL;

/// A failure of the transport; the message names the peer or the address and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The address can't be listened on.
    #[error("can't listen on UDP {address}: choose another port, or stop the program that uses it")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A name or a limit that was given can't be used.
    #[error("{what} `{value}` can't be used: {reason}")]
    Setting {
        /// What it is.
        what: &'static str,
        /// The value.
        value: String,
        /// Why not.
        reason: &'static str,
    },
    /// A key or a certificate can't be made or used.
    #[error("can't {what}: {reason}")]
    Identity {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The text is no run authority.
    #[error(
        "this is no authority of a run: {reason}; restore the file, or start a new run and issue new tokens"
    )]
    Authority {
        /// What is wrong with it.
        reason: String,
    },
    /// The text is no join token.
    #[error("this is no join token: {reason}; copy the whole line that the coordinator printed")]
    Token {
        /// What is wrong with it.
        reason: String,
    },
    /// The file of a join token can't be read.
    #[error("`{}` is neither a join token nor a file with one: give the file join.token of the coordinator's run directory", path.display())]
    TokenFile {
        /// The text or path that was given.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The join token is past its time.
    #[error(
        "the join token of run `{run_id}` expired on {expired}: ask the coordinator for a new one (and check this machine's clock)"
    )]
    Expired {
        /// The run of the token.
        run_id: String,
        /// When it expired, in UTC.
        expired: String,
    },
    /// The two ends do not belong to the same run.
    #[error(
        "the coordinator at {address} and this token (run `{run_id}`) do not belong together: {reason}; use a token that this coordinator issued"
    )]
    WrongToken {
        /// The coordinator's address.
        address: String,
        /// The run of the token.
        run_id: String,
        /// Which end refused, and why.
        reason: String,
    },
    /// The other end speaks another version of the protocol.
    #[error(
        "the coordinator at {address} speaks another protocol version than this program ({PROTOCOL}): use the same version of the program on both"
    )]
    Version {
        /// The coordinator's address.
        address: String,
    },
    /// No address of the token answers.
    #[error(
        "can't connect to the coordinator of run `{run_id}`: {attempts}; check that it runs, that the address is right and that UDP to it is not blocked"
    )]
    Connect {
        /// The run of the token.
        run_id: String,
        /// Each address and what happened there.
        attempts: String,
    },
    /// The server has as many peers as it takes.
    #[error("{peer} has as many peers as it takes: stop some workers, or raise its limit")]
    Busy {
        /// The server.
        peer: String,
    },
    /// Something took longer than it may.
    #[error("{peer} took longer than {} s to {what}", after.as_secs_f64())]
    Timeout {
        /// The other end.
        peer: String,
        /// What did not happen.
        what: &'static str,
        /// The time it had.
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
        /// What happened.
        #[source]
        source: Box<quinn::ConnectionError>,
    },
    /// The other end gave up one operation; the connection stands.
    #[error("{peer} gave up the operation before its {what} was complete")]
    Abandoned {
        /// The other end.
        peer: String,
        /// What was being transferred.
        what: &'static str,
    },
    /// The other end refused the operation and said why.
    #[error("{peer} refused: {message}")]
    Refused {
        /// The other end.
        peer: String,
        /// Its reason.
        message: String,
    },
    /// A declared or given length is over the limit. Nothing was allocated.
    #[error("the {what} of {peer} has {bytes} bytes, more than the {limit} that are taken here")]
    TooLarge {
        /// The other end.
        peer: String,
        /// What is too large.
        what: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The memory for a payload is not there.
    #[error("there is no memory for the {bytes} bytes that {peer} sends")]
    Memory {
        /// The other end.
        peer: String,
        /// The payload's length in bytes.
        bytes: u64,
    },
    /// What arrived is not what its checksum says.
    #[error("the {what} of {peer} arrived damaged: try again, and check that both run the same version")]
    Damaged {
        /// The other end.
        peer: String,
        /// What is damaged.
        what: &'static str,
    },
    /// A header is not the message that is expected here.
    #[error(
        "the {what} of {peer} is not a message of this protocol: use the same version of the program on both"
    )]
    Message {
        /// The other end.
        peer: String,
        /// Which header.
        what: &'static str,
        /// What the decoder said.
        #[source]
        source: postcard::Error,
    },
    /// A payload was expected and none is announced, or the other way round.
    #[error("{peer} sent {found} payload where {expected} is expected")]
    Payload {
        /// The other end.
        peer: String,
        /// What is there.
        found: &'static str,
        /// What is expected.
        expected: &'static str,
    },
    /// The exchange was answered before, with a refusal for example.
    #[error("the operation of {peer} was already answered")]
    Answered {
        /// The other end.
        peer: String,
    },
}
