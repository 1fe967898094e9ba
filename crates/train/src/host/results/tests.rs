//! Tests of receiving results.

mod long_results;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_config::RunConfig;
use dipaco_path::MomentSpecs;
use dipaco_protocol::ContentDigest;
use dipaco_sync::{Fence, LeaseSecret, ProcessId};

use super::*;

/// A process whose leases expect every result.
struct Host {
    intake: Arc<ResultIntake>,
    reception: Arc<Reception>,
    /// True if each lease ends while its first upload is admitted.
    ends: AtomicBool,
    /// Inner steps at the end of each lease.
    to: u64,
}

impl ResultReceiver for Host {
    type Error = HostError;

    fn intake(&self) -> &Arc<ResultIntake> {
        &self.intake
    }

    fn reception(&self) -> &Arc<Reception> {
        &self.reception
    }

    async fn admit(&self, piece: &UploadedPiece) -> Result<Admission, HostError> {
        if self.ends.load(Ordering::Relaxed) {
            let LeaseClaim { key: LeaseKey { path, fence, .. }, worker } = &piece.claim;
            self.intake.uploads.drop_lease(worker, *path, *fence);
        }
        Ok(Admission::Expected(AdmittedUpload { to: self.to, expected: None }))
    }

    fn lost(&self, _: &LeaseClaim) -> Option<Response> {
        self.ends.load(Ordering::Relaxed).then(|| Response::Lost { reason: "ended".to_owned() })
    }

    async fn record(&self, _: &Upload, _: StoredResult) -> Result<Response, HostError> {
        Ok(Response::Done)
    }
}

fn host(configure: impl FnOnce(&mut RunConfig)) -> Host {
    let mut config = RunConfig::default();
    config.model.vocab_size = 4000;
    configure(&mut config);
    let plan = WorkerPlan::new(&config);
    let topology = plan.topology().unwrap();
    let layout = Layout::of_plan(&plan, &topology).unwrap();
    let intake = ResultIntake {
        store: RunStore::in_memory(),
        plan,
        topology,
        layout,
        uploads: Uploads::new(RunStore::in_memory(), PathBuf::from("no folder")),
        gradients: VerifiedGradients::default(),
        modules: None,
    };
    Host { intake: Arc::new(intake), reception: Arc::default(), ends: AtomicBool::new(false), to: 0 }
}

/// The first piece of a path's state of `bytes` bytes.
fn state(bytes: u64) -> UploadedPiece {
    let key = LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() };
    let claim = LeaseClaim { key, worker: ProcessId::local("w") };
    let digest = ContentDigest { bytes, ..ContentDigest::of(&[]) };
    UploadedPiece { claim, item: LeaseResult::State, digest, offset: 0 }
}

#[tokio::test]
async fn an_upload_that_begins_after_the_end_of_its_lease_does_not_stay() {
    let host = host(|_| ());
    let (piece, payload) = (state(2 * PIECE_BYTES), Bytes::from(vec![0; PIECE_BYTES as usize]));
    for ends in [false, true] {
        host.ends.store(ends, Ordering::Relaxed);
        host.intake.uploads.retain(|_| false);
        let answer = accept(&host, piece.clone(), payload.clone()).await.unwrap();
        assert_eq!(matches!(answer, Response::Lost { .. }), ends, "{answer:?}");
        assert_eq!(host.intake.uploads.find(&piece).is_err(), ends);
    }
}

#[test]
fn a_state_longer_than_its_scheme_needs_is_refused_with_its_first_header() {
    let adamw = host(|_| ());
    let muon = host(|config| config.train.optimizer = dipaco_optim::Optimizer::Muon);
    let bf16 = host(|config| config.train.state_dtype = dipaco_model::Dtype::Bf16);
    let moments = |host: &Host| MomentSpecs::of_plan(&host.intake.plan).unwrap().file_bytes();
    assert!(moments(&muon) < moments(&adamw) * 3 / 4);
    assert_eq!(moments(&bf16), moments(&adamw) / 2);
    for host in [adamw, muon, bf16] {
        let bytes = moments(&host);
        assert_eq!(host.intake.objection(&state(bytes + 4096)), None);
        let refusal = host.intake.objection(&state(bytes * 5 / 4));
        assert!(
            matches!(&refusal, Some(Response::Refused { reason }) if reason.contains("at most")),
            "{refusal:?}"
        );
    }
}
