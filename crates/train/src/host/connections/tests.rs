//! Tests of connections that meet a bug, of their lines in the log, and of requests that nobody awaits any more.

use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;

use dipaco_net::{Client, Limits, RunAuthority};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span, subscriber};

use super::*;
use crate::TrainError;
use crate::host::HostError;
use crate::host::results::{Admission, ResultIntake, ResultReceiver};
use crate::host::uploads::Upload;
use dipaco_ledger::StoredResult;

const LONG: Duration = Duration::from_secs(60);

/// Panics on one request, never answers another, and confirms all others.
struct Buggy {
    revocations: Revocations,
    reception: Arc<Reception>,
    /// Hears of the beginning and of the end of each request that gets no answer, and of peers that have left.
    told: mpsc::Sender<&'static str>,
}

impl Buggy {
    fn new() -> (Arc<Self>, mpsc::Receiver<&'static str>) {
        let (told, heard) = mpsc::channel(64);
        (Arc::new(Self { revocations: Revocations::told(), reception: Arc::default(), told }), heard)
    }
}

/// Tells of the end of a request, dropped or not.
struct Unanswered(mpsc::Sender<&'static str>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.try_send("ended").unwrap();
    }
}

#[derive(Debug, thiserror::Error)]
enum BuggyError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Core(#[from] TrainError),
}

impl ResultReceiver for Buggy {
    type Error = BuggyError;

    fn intake(&self) -> &Arc<ResultIntake> {
        unreachable!("this host takes no results")
    }

    fn reception(&self) -> &Arc<Reception> {
        &self.reception
    }

    async fn admit(&self, _: &UploadedPiece) -> Result<Admission, BuggyError> {
        unreachable!("this host takes no results")
    }

    async fn record(&self, _: &Upload, _: StoredResult) -> Result<Response, BuggyError> {
        unreachable!("this host takes no results")
    }
}

impl RequestHandler for Buggy {
    fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    async fn welcome(&self, _: &Peer, _: &Registration) -> Result<Answer, BuggyError> {
        Ok((Response::Done, None))
    }

    async fn answer(self: &Arc<Self>, _: &Peer, request: Request) -> Result<Answer, BuggyError> {
        assert!(request != Request::Release, "the bug of this test");
        if matches!(request, Request::Lease { wait_ms: 1.., .. }) {
            self.told.try_send("begun").unwrap();
            let _ended = Unanswered(self.told.clone());
            std::future::pending::<()>().await;
        }
        Ok((Response::Done, None))
    }

    async fn expel(&self, _: &Peer) -> Result<(), BuggyError> {
        Ok(())
    }

    async fn left(&self, _: &Peer, _: String, _: bool) -> Result<(), BuggyError> {
        let _ = self.told.try_send("left");
        Ok(())
    }
}

/// The lines of all tests in the log that name a worker: its name and the message.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(String, String)>>>);

impl Log {
    /// The log of this process. A line that is first written without a log may be off for ever, so every test begins here.
    fn open() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            subscriber::set_global_default(log.clone()).unwrap();
            log
        })
    }

    /// The messages about workers whose names begin so.
    fn about(&self, name: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.0.starts_with(name)).map(|line| line.1.clone()).collect()
    }
}

/// The fields of a line.
#[derive(Default)]
struct Line {
    worker: Option<String>,
    message: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "worker" {
            self.worker = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("dipaco_train")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let Line { worker, message } = line;
        self.0.lock().unwrap().extend(worker.map(|worker| (worker, message)));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

async fn greeted(token: &dipaco_net::JoinToken, name: &str) -> Client {
    let client = Client::connect(token, SystemTime::now(), Limits::default()).await.unwrap();
    let hello = Request::Hello {
        worker: name.to_owned(),
        instance: 1,
        version: crate::BUILD.to_owned(),
        numerics: "test".to_owned(),
    };
    let (answer, _) = client.call::<_, Response>(&hello, None, 0, LONG).await.unwrap();
    assert_eq!(answer, Response::Done);
    client
}

/// A server on a free port, and a token for it.
fn listening() -> (Server, dipaco_net::JoinToken) {
    Log::open();
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, LONG).unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), &identity, Limits::default()).unwrap();
    let addresses = vec![server.local_addr().to_string()];
    let token = authority.issue("worker", "a", addresses, now, LONG).unwrap();
    (server, token)
}

#[tokio::test]
async fn a_panic_closes_its_connection_and_nothing_else() {
    let ((server, token), (host, _), farewell) = (listening(), Buggy::new(), CancellationToken::new());
    let visit = async {
        let (unlucky, other) = (greeted(&token, "unlucky").await, greeted(&token, "other").await);
        let error = unlucky.call::<_, Response>(&Request::Release, None, 0, LONG).await.unwrap_err();
        let ends =
            matches!(error, NetError::Closed { .. } | NetError::Abandoned { .. } | NetError::Lost { .. });
        assert!(ends, "{error:?}");
        // The reason arrives unless the reset of the request's stream still waits for room (`PeerConnection::close`).
        match unlucky.closed().await {
            NetError::Closed { reason, .. } => assert!(reason.contains("a bug of this program"), "{reason}"),
            NetError::Lost { source, .. } => assert_eq!(*source, quinn_proto::ConnectionError::Reset),
            other => panic!("{other:?}"),
        }
        let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
        assert_eq!(other.call::<_, Response>(&ask, None, 0, LONG).await.unwrap().0, Response::Done);
        // The peer of the panic may come back, too.
        greeted(&token, "unlucky").await;
        assert_eq!(host.reception.bugs(), 1);
    };
    tokio::select! {
        ended = serve_peers(&server, &host, &farewell) => panic!("the process ended: {ended:?}"),
        () = visit => {}
    }
}

#[tokio::test]
async fn a_question_ends_when_nobody_awaits_its_answer() {
    let ((server, token), (host, mut heard), farewell) =
        (listening(), Buggy::new(), CancellationToken::new());
    let visit = async {
        let client = greeted(&token, "impatient").await;
        let ask = Request::Lease { held: Vec::new(), wait_ms: 15_000 };
        tokio::select! {
            answer = client.call::<_, Response>(&ask, None, 0, LONG) => panic!("{answer:?}"),
            begun = heard.recv() => assert_eq!(begun, Some("begun")),
        }
        assert_eq!(heard.recv().await, Some("ended"));
        // The connection goes on.
        let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
        assert_eq!(client.call::<_, Response>(&ask, None, 0, LONG).await.unwrap().0, Response::Done);
    };
    tokio::select! {
        ended = serve_peers(&server, &host, &farewell) => panic!("the process ended: {ended:?}"),
        () = visit => {}
    }
}

#[tokio::test]
async fn a_flood_of_connections_is_no_flood_of_lines() {
    let ((server, token), (host, mut heard), farewell) =
        (listening(), Buggy::new(), CancellationToken::new());
    let visit = async {
        greeted(&token, "honest").await.close("the test is over").await;
        assert_eq!(heard.recv().await, Some("left"));
        assert_eq!(Log::open().about("honest"), ["joined", "left"]);
        let process = ProcessId { token: "a".to_owned(), ..ProcessId::local("flood") };
        while host.reception.may_log(&process) {}
        for number in 0..16 {
            greeted(&token, &format!("flood {number}")).await.close("the test is over").await;
            assert_eq!(heard.recv().await, Some("left"));
        }
        // A line in ten seconds.
        let lines = Log::open().about("flood");
        assert!(lines.len() < 16, "{lines:?}");
    };
    tokio::select! {
        ended = serve_peers(&server, &host, &farewell) => panic!("the process ended: {ended:?}"),
        () = visit => {}
    }
}
