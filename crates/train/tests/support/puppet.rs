//! A worker whose requests the test writes.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_net::{Client, JoinToken, Limits, NetError, Service};
use dipaco_path::{Layout, MomentSpecs, PathState, TrainDevice};
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseReport, LeaseResult, Request, Response, WorkerPlan};

use super::Run;

/// A state of zeros at the end of a lease, which says that it is of inner step `step`.
pub(crate) fn encoded_state(run: &Run, work: &GrantedLease, step: u64) -> Bytes {
    let plan = WorkerPlan::new(&run.config);
    let moments = MomentSpecs::of_plan(&plan).unwrap();
    let position = (work.to - work.phase_step) * plan.train.batch as u64;
    let state = PathState { step, position, ..PathState::start(&moments) };
    state.encode(&moments).unwrap().into()
}

/// A worker whose requests the test writes.
pub(crate) struct Puppet(Client, String);

impl Puppet {
    /// Connects without a hello.
    pub(crate) async fn silent(token: &JoinToken) -> Self {
        // As an honest worker on this machine.
        let numerics = dipaco_path::numerics(&TrainDevice::Cpu).unwrap();
        Self(Client::connect(token, SystemTime::now(), Limits::default()).await.unwrap(), numerics)
    }

    /// The same puppet with a device of other arithmetic.
    pub(crate) fn with_numerics(self, numerics: &str) -> Self {
        Self(self.0, numerics.to_owned())
    }

    /// Connects to a synchronizer and is welcomed.
    pub(crate) async fn welcome_at_synchronizer(token: &JoinToken, name: &str) -> Self {
        let numerics = dipaco_path::numerics(&TrainDevice::Cpu).unwrap();
        let connected =
            Client::connect_to(Service::Helper, token, SystemTime::now(), Limits::default()).await;
        let puppet = Self(connected.unwrap(), numerics);
        let answer = puppet.hello(name, dipaco_train::BUILD).await;
        assert!(matches!(answer, Response::Welcome { .. }), "{answer:?}");
        puppet
    }

    /// Connects and is welcomed.
    pub(crate) async fn welcome(token: &JoinToken, name: &str) -> Self {
        let puppet = Self::silent(token).await;
        let answer = puppet.hello(name, dipaco_train::BUILD).await;
        assert!(matches!(answer, Response::Welcome { .. }), "{answer:?}");
        puppet
    }

    /// As [`Puppet::welcome`], with the limits of its end of the connection, as the process `instance` of its name.
    pub(crate) async fn welcome_as(token: &JoinToken, name: &str, instance: u64, limits: Limits) -> Self {
        let numerics = dipaco_path::numerics(&TrainDevice::Cpu).unwrap();
        let puppet = Self(Client::connect(token, SystemTime::now(), limits).await.unwrap(), numerics);
        let answer = puppet.hello_as(name, instance, dipaco_train::BUILD).await;
        assert!(matches!(answer, Response::Welcome { .. }), "{answer:?}");
        puppet
    }

    pub(crate) async fn hello(&self, name: &str, version: &str) -> Response {
        self.hello_as(name, 1, version).await
    }

    async fn hello_as(&self, name: &str, instance: u64, version: &str) -> Response {
        let request = Request::Hello {
            worker: name.to_owned(),
            instance,
            version: version.to_owned(),
            numerics: self.1.clone(),
        };
        self.ask(&request, None).await.unwrap().0
    }

    /// Waits for the end of the connection and returns the reason.
    pub(crate) async fn closed(&self) -> NetError {
        self.0.closed().await
    }

    /// Sends any request.
    pub(crate) async fn ask(
        &self,
        request: &impl serde::Serialize,
        payload: Option<Bytes>,
    ) -> Result<(Response, Option<Bytes>), NetError> {
        self.0.call(request, payload, 1 << 30, Duration::from_secs(30)).await
    }

    /// Uploads a result that fits in one piece.
    pub(crate) async fn submit(
        &self,
        work: &GrantedLease,
        item: LeaseResult,
        content: Bytes,
    ) -> Result<Response, NetError> {
        let digest = ContentDigest::of(&content);
        let request = Request::Submit { lease: work.key(), item, digest, offset: 0 };
        self.ask(&request, Some(content)).await.map(|(answer, _)| answer)
    }

    /// Uploads an outer gradient of equal values.
    pub(crate) async fn submit_gradient(
        &self,
        work: &GrantedLease,
        item: LeaseResult,
        gradient: (usize, f32),
    ) -> Response {
        let (values, value) = gradient;
        let encoded = dipaco_codec::encode(&vec![value; values], dipaco_codec::Compression::F32).unwrap();
        self.submit(work, item, encoded.into()).await.unwrap()
    }

    /// Uploads all outer gradients of a lease, of equal values.
    pub(crate) async fn submit_gradients(&self, run: &Run, work: &GrantedLease, value: f32) {
        let plan = WorkerPlan::new(&run.config);
        let layout = Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap();
        for send in &work.sends {
            let values = layout.fragment(send.fragment.module.level, send.fragment.index).unwrap().values();
            let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
            assert_eq!(self.submit_gradient(work, item, (values, value)).await, Response::Done);
        }
    }

    /// Completes a lease with outer gradients of equal values and a state of zeros.
    pub(crate) async fn carry_out(&self, run: &Run, work: &GrantedLease, value: f32) {
        self.carry_out_with(run, work, value, LeaseReport::default()).await;
    }

    /// [`carry_out`](Self::carry_out) with a report.
    pub(crate) async fn carry_out_with(
        &self,
        run: &Run,
        work: &GrantedLease,
        value: f32,
        report: LeaseReport,
    ) {
        self.submit_gradients(run, work, value).await;
        if work.uploads_state {
            let state = encoded_state(run, work, work.to);
            assert_eq!(self.submit(work, LeaseResult::State, state).await.unwrap(), Response::Done);
        }
        assert_eq!(self.complete(work, report).await, Response::Done);
    }

    /// Sends a heartbeat.
    pub(crate) async fn beat(&self, work: &GrantedLease, step: u64) -> Response {
        let beat = Request::Heartbeat { lease: work.key(), step, repeated: 0, loss: None };
        self.ask(&beat, None).await.unwrap().0
    }

    /// Asks for the lease that follows.
    pub(crate) async fn follow(&self, work: &GrantedLease) -> Response {
        let follow = Request::Follow { lease: work.key(), wait_ms: 0 };
        self.ask(&follow, None).await.unwrap().0
    }

    /// Completes a lease.
    pub(crate) async fn complete(&self, work: &GrantedLease, report: LeaseReport) -> Response {
        let complete = Request::Complete { lease: work.key(), report };
        self.ask(&complete, None).await.unwrap().0
    }

    /// Takes the next lease.
    pub(crate) async fn lease(&self) -> GrantedLease {
        let answer = self.ask(&Request::Lease { held: Vec::new(), wait_ms: 15_000 }, None).await.unwrap();
        match answer.0 {
            Response::Lease(work) => *work,
            other => panic!("no work but {other:?}"),
        }
    }
}
