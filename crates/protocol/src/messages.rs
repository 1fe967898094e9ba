//! Requests and responses.
//!
//! One QUIC stream carries one request and one response. Weights, gradients, states and shards travel in pieces. Each
//! piece is the payload of an operation of its own. Every operation can be repeated: a worker that loses an answer asks
//! again. `docs/wire-protocol.md` describes the bytes.

use std::collections::BTreeSet;

use dipaco_ledger::{GrantedLease, LeaseReport, LeaseResult, ObjectRef, OuterStepDone, OuterStepOrder};
use dipaco_sync::{Fence, LeaseClaim, LeaseKey};
use dipaco_topology::{ModuleId, PathId};
use serde::{Deserialize, Serialize};

use crate::ObjectLink;

/// Length of a piece in bytes; only the last piece of an object or result is shorter. A broken connection costs one piece
/// per stream, and the coordinator holds one piece per stream in memory. Shorter pieces cost more requests; at this
/// length their cost cannot be measured.
pub const PIECE_BYTES: u64 = 2 << 20;

/// Number of pieces that a worker transfers at a time, in both directions together. The coordinator serves no more to one
/// worker. With [`PIECE_BYTES`] this is 16 MiB, twice the content of a link of 1 Gb/s and 50 ms.
pub const PIECES_AT_ONCE: usize = 8;

/// Number of leases about whose end a synchronizer asks at a time.
pub const MOST_LEASES: usize = 10_000;

/// Role in the token of a worker.
pub const WORKER: &str = "worker";
/// Role in the token of a synchronizer.
pub const SYNCHRONIZER: &str = "synchronizer";

/// Close reason of the coordinator of a complete run.
pub const RUN_COMPLETE: &str = "the run is complete";

/// A request of a worker or a synchronizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The first request of a connection.
    Hello {
        /// The worker's name, unique in the run.
        worker: String,
        /// Random number of the process. A new process under an old name holds no leases.
        instance: u64,
        /// Version of the program, and hash of its sources.
        version: String,
        /// Fingerprint of the arithmetic of the device that trains.
        numerics: String,
    },
    /// Asks for a lease.
    Lease {
        /// Paths whose newest state the worker holds in memory.
        held: Vec<PathId>,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Asks for the lease that follows a current lease, to prefetch its inputs during training.
    Follow {
        /// The current lease.
        lease: LeaseKey,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Renews a lease.
    Heartbeat {
        /// The lease.
        lease: LeaseKey,
        /// Number of inner steps taken in this lease.
        step: u64,
        /// Inner steps of earlier leases that the worker has repeated for this lease.
        repeated: u64,
        /// Mean training loss of the steps since the last heartbeat, in nats per token; absent before the first step.
        loss: Option<f32>,
    },
    /// Asks for a piece of an object or shard that a [`GrantedLease`] names.
    Fetch {
        /// The object or shard.
        source: FetchSource,
        /// Offset of the piece in bytes, a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Asks for the address of an object in the run's store, for an object that [`Request::Fetch`] would give. The pieces
    /// can then be read there.
    Link {
        /// The object.
        object: ObjectRef,
    },
    /// Reports an object whose pieces have all arrived, but whose hash is wrong. The coordinator verifies its stored copy.
    Check {
        /// The object.
        object: ObjectRef,
    },
    /// Uploads a piece of one result of a lease as payload. The last piece completes the result. A result that the lease
    /// sends before its end counts at once.
    Submit {
        /// The lease.
        lease: LeaseKey,
        /// The result.
        item: LeaseResult,
        /// Hash and length of the whole result.
        digest: ContentDigest,
        /// Offset of the piece in bytes, a multiple of [`PIECE_BYTES`].
        offset: u64,
    },
    /// Completes a lease: all its results are uploaded.
    Complete {
        /// The lease.
        lease: LeaseKey,
        /// Losses, tokens and times of the lease.
        report: LeaseReport,
    },
    /// Gives back all leases of the worker, unfinished.
    Release,
    /// Takes over modules, or keeps them, and asks for their outer steps.
    Orders {
        /// The modules.
        modules: Vec<ModuleId>,
        /// `host:port` at which workers reach the synchronizer.
        address: String,
        /// Number of revoked tokens that the synchronizer knows. The coordinator does not wait when it knows another number.
        revoked: u64,
        /// Leases of which the synchronizer has uploads, at most [`MOST_LEASES`].
        uploads: Vec<(PathId, Fence)>,
        /// Time in milliseconds that the coordinator may wait before it answers.
        wait_ms: u64,
    },
    /// Asks on behalf of a worker whether its lease is current and expects a result.
    Expected {
        /// The lease and the worker that names it.
        claim: LeaseClaim,
        /// The result that the worker begins to upload.
        item: LeaseResult,
        /// Announced digest of the result.
        digest: ContentDigest,
    },
    /// Reports that a worker's result is in the store.
    Stored {
        /// The lease and the worker that names it.
        claim: LeaseClaim,
        /// The result.
        item: LeaseResult,
        /// Inner steps of the path after which the worker made it, as [`Response::Expected`] said.
        to: u64,
        /// Its digest. Lease, result, inner steps and hash give the name of its object.
        digest: ContentDigest,
        /// Euclidean norm of an outer gradient; 0 for a state.
        norm: f64,
    },
    /// Reports a finished outer step.
    Stepped(Box<OuterStepDone>),
    /// Asks for a token of the same name and role that is valid for longer.
    Renew,
    /// Reports that the training of a lease diverged. The lease ends.
    Diverged {
        /// The lease.
        lease: LeaseKey,
        /// Number of inner steps of the path before the step that diverged.
        step: u64,
    },
}

impl Request {
    /// True if only a synchronizer may send this request.
    pub fn is_of_a_synchronizer(&self) -> bool {
        matches!(self, Self::Orders { .. } | Self::Expected { .. } | Self::Stored { .. } | Self::Stepped(_))
    }

    /// True if the request or its response carries a piece, or reads an object as long as many pieces.
    pub fn moves_a_piece(&self) -> bool {
        matches!(self, Self::Fetch { .. } | Self::Submit { .. } | Self::Check { .. })
    }
}

/// An object or shard that a worker may fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchSource {
    /// An object of the store.
    Object(ObjectRef),
    /// A file of the shard of a path.
    Shard {
        /// The path.
        path: PathId,
        /// Content hash of the shard. A path has another shard in every phase.
        hash: String,
        /// Number of the token file in the shard's list; `None` for the list, or for a shard of a single file.
        file: Option<u32>,
    },
}

/// Hash and length of content that travels in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentDigest {
    /// BLAKE3 hash, 64 lower-case hexadecimal digits.
    pub hash: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl ContentDigest {
    /// True if the hash has the form of a BLAKE3 hash. A hash is part of an object's name.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        self.hash.len() == 2 * blake3::OUT_LEN && self.hash.bytes().all(digit)
    }

    /// Hash and length of `content`.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self { hash: blake3::hash(content).to_hex().to_string(), bytes: content.len() as u64 }
    }

    /// Hash and length of what a hasher has read.
    #[must_use]
    pub fn of_hasher(hasher: &blake3::Hasher) -> Self {
        Self { hash: hasher.finalize().to_hex().to_string(), bytes: hasher.count() }
    }

    /// Length in bytes of the piece at `offset`; `None` if no piece begins there. Empty content has one empty piece.
    #[must_use]
    pub fn piece(&self, offset: u64) -> Option<u64> {
        let begins = offset.is_multiple_of(PIECE_BYTES) && (offset < self.bytes || offset == 0);
        begins.then(|| (self.bytes - offset).min(PIECE_BYTES))
    }
}

/// A response of the coordinator or a synchronizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Answers [`Request::Hello`].
    Welcome {
        /// The run's identity.
        run: String,
        /// The part of the configuration that a worker needs: a [`WorkerPlan`](crate::WorkerPlan) as JSON. Configuration is
        /// always written in self-describing formats.
        plan: String,
    },
    /// Answers [`Request::Lease`] and [`Request::Follow`]: a lease.
    Lease(Box<GrantedLease>),
    /// Answers [`Request::Lease`] and [`Request::Follow`]: no path can be trained now; ask again. Answers
    /// [`Request::Submit`]: there is no room for the result now; send all of its pieces again after a pause.
    Wait {
        /// The reason.
        reason: String,
    },
    /// Answers [`Request::Lease`]: the worker's device computes other bits than those that count. This may change; ask again.
    Unfit {
        /// The reason, and what to do.
        reason: String,
    },
    /// Answers [`Request::Lease`]: the run is complete. Answers [`Request::Follow`]: no lease follows.
    Finished,
    /// Confirms a request that is carried out.
    Done,
    /// Answers [`Request::Expected`]: the lease is current and expects the result.
    Expected {
        /// Inner steps of the path after which the worker makes the result.
        to: u64,
    },
    /// Answers [`Request::Fetch`]; the piece is the payload.
    Piece {
        /// Length of the whole object or shard in bytes.
        total: u64,
    },
    /// Answers [`Request::Link`].
    Link(ObjectLink),
    /// Answers [`Request::Link`]: the store or the run gives no links.
    NoLink,
    /// Answers [`Request::Submit`]: the piece is stored, others are missing.
    PieceStored,
    /// Answers [`Request::Orders`].
    Orders {
        /// Those of the leases in the request that are over: nobody needs their uploads.
        over: BTreeSet<Fence>,
        /// The outer steps to take.
        orders: Vec<OuterStepOrder>,
        /// The names of all revoked tokens. The synchronizer need not see the run's files.
        revoked: BTreeSet<String>,
    },
    /// The synchronizer cannot answer this request: ask the coordinator.
    Elsewhere {
        /// The reason.
        reason: String,
    },
    /// The lease is no longer valid: drop its results.
    Lost {
        /// The reason.
        reason: String,
    },
    /// The request cannot be carried out, and repeating it would not help.
    Refused {
        /// The reason, and the remedy.
        reason: String,
    },
    /// Answers [`Request::Renew`].
    Renewed {
        /// The token's line of text, without addresses.
        token: String,
    },
}
