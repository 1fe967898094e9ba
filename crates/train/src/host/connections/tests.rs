//! Tests of connections that meet a bug, and of requests that nobody awaits any more.

use std::time::SystemTime;

use dipaco_net::{Client, Limits, RunAuthority};
use tokio::sync::mpsc;

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
    /// Hears of the beginning and of the end of each request that gets no answer.
    unanswered: mpsc::UnboundedSender<&'static str>,
}

impl Buggy {
    fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<&'static str>) {
        let (unanswered, heard) = mpsc::unbounded_channel();
        (Arc::new(Self { revocations: Revocations::told(), unanswered }), heard)
    }
}

/// Tells of the end of a request, dropped or not.
struct Unanswered(mpsc::UnboundedSender<&'static str>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.send("ended").unwrap();
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

    async fn welcome(&self, _: &Peer, _: bool) -> Result<Answer, BuggyError> {
        Ok((Response::Done, None))
    }

    async fn answer(self: &Arc<Self>, _: &Peer, request: Request) -> Result<Answer, BuggyError> {
        assert!(request != Request::Release, "the bug of this test");
        if matches!(request, Request::Lease { wait_ms: 1.., .. }) {
            self.unanswered.send("begun").unwrap();
            let _ended = Unanswered(self.unanswered.clone());
            std::future::pending::<()>().await;
        }
        Ok((Response::Done, None))
    }

    async fn expel(&self, _: &Peer) -> Result<(), BuggyError> {
        Ok(())
    }

    async fn left(&self, _: &Peer, _: String) -> Result<(), BuggyError> {
        Ok(())
    }
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
        assert!(matches!(error, NetError::Closed { .. } | NetError::Abandoned { .. }), "{error}");
        assert!(unlucky.closed().await.to_string().contains("a bug of this program"));
        let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
        assert_eq!(other.call::<_, Response>(&ask, None, 0, LONG).await.unwrap().0, Response::Done);
        // The peer of the panic may come back, too.
        greeted(&token, "unlucky").await;
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
