//! The memory of a process while it takes a long result. This file has one test, so that nothing else is in its memory.
#![allow(clippy::unwrap_used)]

use std::fs;

use bytes::Bytes;
use dipaco_path::PiecedFile;
use dipaco_protocol::{ContentDigest, LeaseResult, PIECE_BYTES, Response};
use dipaco_store::RunStore;
use dipaco_sync::{Fence, LeaseClaim, LeaseSecret, ProcessId};
use dipaco_topology::PathId;
use dipaco_train::client::LeaseKey;
use dipaco_train::host::{AdmittedUpload, PieceOutcome, UploadedPiece, Uploads};

/// Pieces of the result: more than are collected in memory.
const PIECES: u64 = 80;

/// Most memory that this process has had so far, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn piece(number: u64) -> Bytes {
    vec![number as u8; PIECE_BYTES as usize].into()
}

#[tokio::test]
async fn a_long_result_takes_the_memory_of_a_few_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
    let uploads = Uploads::new(store, folder.path().join("none"));
    let mut hasher = blake3::Hasher::new();
    for number in 0..PIECES {
        hasher.update(&piece(number));
    }
    let digest = ContentDigest { hash: hasher.finalize().to_hex().to_string(), bytes: hasher.count() };
    let key = LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() };
    let claim = LeaseClaim { key, worker: ProcessId::local("w") };
    let begin = peak();

    let mut content = None;
    // Pairs change places, as those that travel at the same time do.
    for number in (0..PIECES).map(|number| number ^ 1) {
        let (claim, digest, offset) = (claim.clone(), digest.clone(), number * PIECE_BYTES);
        let uploaded = UploadedPiece { claim, item: LeaseResult::State, digest, offset };
        let upload = uploads
            .find(&uploaded)
            .unwrap_or_else(|key| uploads.begin(key, &uploaded, AdmittedUpload::default()));
        match uploads.add_piece(&upload, offset, piece(number)).await.unwrap() {
            PieceOutcome::Answer(answer) => assert_eq!(answer, Response::PieceStored),
            PieceOutcome::Complete(complete) => content = Some(complete.content()),
        }
    }
    let content = content.unwrap();
    assert_eq!(content.digest, digest);
    for (number, found) in (0..).zip(content.pieces()) {
        assert!(found.unwrap() == piece(number));
    }
    assert!(content.piece_from(content.length() - 1).unwrap().len() == 1);
    let taken = peak() - begin;
    assert!(taken <= 8 * PIECE_BYTES, "{taken} bytes for a result of {} bytes", digest.bytes);
}
