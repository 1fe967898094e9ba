//! Tests of connections that meet a bug.

use std::time::SystemTime;

use dipaco_net::{Client, Limits, RunAuthority};

use super::*;
use crate::TrainError;
use crate::host::HostError;
use crate::host::results::{Admission, ResultIntake, ResultReceiver};
use crate::host::uploads::Upload;
use dipaco_ledger::StoredResult;

const LONG: Duration = Duration::from_secs(60);

/// Panics on one request, and confirms all others.
struct Buggy(Revocations);

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
        &self.0
    }

    async fn welcome(&self, _: &Peer, _: bool) -> Result<Answer, BuggyError> {
        Ok((Response::Done, None))
    }

    async fn answer(self: &Arc<Self>, _: &Peer, request: Request) -> Result<Answer, BuggyError> {
        assert!(request != Request::Release, "the bug of this test");
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

#[tokio::test]
async fn a_panic_closes_its_connection_and_nothing_else() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, LONG).unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), &identity, Limits::default()).unwrap();
    let addresses = vec![server.local_addr().to_string()];
    let token = authority.issue("worker", "a", addresses, now, LONG).unwrap();
    let (host, farewell) = (Arc::new(Buggy(Revocations::none())), CancellationToken::new());
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
