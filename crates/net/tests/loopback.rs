//! Server and client over real sockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_net::{Client, Exchange, JoinToken, Limits, NetError, RunAuthority, Server, Traffic};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};

const DAY: Duration = Duration::from_secs(86_400);
/// An upper bound; no test waits for its end.
const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Request {
    Ping,
    Echo,
    Wait,
    Release,
    TakeAtMost(u64),
    Drop,
    Refuse,
    Length(usize),
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn token(authority: &RunAuthority, server: &Server) -> JoinToken {
    let addresses = vec![server.local_addr().to_string()];
    authority.issue("worker", "a", addresses, SystemTime::now(), DAY).unwrap()
}

struct Run {
    server: Arc<Server>,
    token: JoinToken,
    /// Reports of a waiting handler: the start of its wait, then the end.
    waits: mpsc::UnboundedReceiver<&'static str>,
}

/// A server that handles each request in its own task.
fn run() -> Run {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let server = Server::bind(loopback(), &authority.server(now, DAY).unwrap(), Limits::default()).unwrap();
    let token = token(&authority, &server);
    let server = Arc::new(server);
    let (report, waits) = mpsc::unbounded_channel();
    let listening = Arc::clone(&server);
    tokio::spawn(async move {
        let released = Arc::new(Notify::new());
        while let Some(peer) = listening.accept().await {
            let (released, report) = (Arc::clone(&released), report.clone());
            tokio::spawn(async move {
                while let Some(exchange) = peer.accept_exchange().await {
                    tokio::spawn(handle(exchange, Arc::clone(&released), report.clone()));
                }
            });
        }
    });
    Run { server, token, waits }
}

async fn handle(
    mut exchange: Exchange,
    released: Arc<Notify>,
    report: mpsc::UnboundedSender<&'static str>,
) -> Result<(), NetError> {
    match exchange.request().await? {
        Request::Ping => exchange.respond(&None::<u64>, None).await,
        Request::Echo => {
            let payload = exchange.receive_payload(64 << 20).await?;
            exchange.respond(&Some(payload.len() as u64), Some(payload)).await
        }
        Request::Wait => {
            report.send("waits").unwrap();
            tokio::select! {
                () = released.notified() => exchange.respond(&(), None).await,
                () = exchange.abandoned() => {
                    report.send("abandoned").unwrap();
                    Ok(())
                }
            }
        }
        Request::Release => {
            released.notify_waiters();
            exchange.respond(&(), None).await
        }
        Request::TakeAtMost(bytes) => {
            let length = exchange.receive_payload(bytes).await?.len();
            exchange.respond(&length, None).await
        }
        Request::Drop => Ok(()),
        Request::Refuse => exchange.refuse("the lease of path 3 was lost").await,
        Request::Length(bytes) => exchange.respond(&(), Some(vec![1; bytes].into())).await,
    }
}

async fn connect(run: &Run) -> Client {
    Client::connect(&run.token, SystemTime::now(), Limits::default()).await.unwrap()
}

fn weights(bytes: usize) -> Bytes {
    (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>().into()
}

#[tokio::test]
async fn a_request_without_a_payload_gets_its_response() {
    let run = run();
    let client = connect(&run).await;
    let (length, payload) = client.call::<_, Option<u64>>(&Request::Ping, None, 0, LONG).await.unwrap();
    assert_eq!((length, payload), (None, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_any_size_pass_both_ways_and_are_counted() {
    let run = run();
    let client = connect(&run).await;
    let mut total = 0;
    for bytes in [0, 1, 65_536, 5_000_001] {
        let payload = weights(bytes);
        let (length, back) = client
            .call::<_, Option<u64>>(&Request::Echo, Some(payload.clone()), bytes as u64, LONG)
            .await
            .unwrap();
        assert_eq!(length, Some(bytes as u64));
        assert!(back.unwrap() == payload, "{bytes} bytes came back changed");
        total += bytes as u64;
    }
    let (here, there) = (client.traffic(), run.server.traffic());
    for Traffic { exchanges, payload_sent, payload_received, udp_sent, udp_received } in [here, there] {
        assert_eq!((exchanges, payload_sent, payload_received), (4, total, total));
        // Encryption and headers cost a few per cent, retransmissions more.
        assert!(udp_sent > total && udp_received > total, "{udp_sent} {udp_received}");
    }
}

#[tokio::test]
async fn a_call_that_waits_holds_up_no_other() {
    let mut run = run();
    let client = connect(&run).await;
    let waiting = client.call::<_, ()>(&Request::Wait, None, 0, LONG);
    let meanwhile = async {
        assert_eq!(run.waits.recv().await, Some("waits"));
        client.call::<_, Option<u64>>(&Request::Echo, Some(weights(100_000)), 100_000, LONG).await.unwrap();
        client.call::<_, ()>(&Request::Release, None, 0, LONG).await.unwrap();
    };
    let (waited, ()) = tokio::join!(waiting, meanwhile);
    waited.unwrap();
}

#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_limit() {
    let run = run();
    let client = connect(&run).await;
    let limit = Duration::from_millis(20); // the call ends by it: nobody releases the handler
    let error = client.call::<_, ()>(&Request::Wait, None, 0, limit).await.unwrap_err();
    assert!(matches!(error, NetError::Timeout { what: "answer", .. }), "{error}");
}

#[tokio::test]
async fn a_handler_learns_that_the_caller_gave_up_and_the_connection_stands() {
    let mut run = run();
    let client = connect(&run).await;
    {
        let waiting = client.call::<_, ()>(&Request::Wait, None, 0, LONG);
        tokio::select! {
            _ = waiting => panic!("nobody released it"),
            report = run.waits.recv() => assert_eq!(report, Some("waits")),
        }
    }
    assert_eq!(run.waits.recv().await, Some("abandoned"));
    client.call::<_, Option<u64>>(&Request::Ping, None, 0, LONG).await.unwrap();
}

#[tokio::test]
async fn a_handler_learns_that_the_peer_left() {
    let mut run = run();
    let client = connect(&run).await;
    {
        let waiting = client.call::<_, ()>(&Request::Wait, None, 0, LONG);
        tokio::select! {
            _ = waiting => panic!("nobody released it"),
            report = run.waits.recv() => assert_eq!(report, Some("waits")),
        }
    }
    drop(client);
    assert_eq!(run.waits.recv().await, Some("abandoned"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_over_the_servers_limit_is_refused_while_it_is_sent() {
    let run = run();
    let client = connect(&run).await;
    // More than the windows hold, so the client still sends when the answer comes.
    let payload = weights(40 << 20);
    let error =
        client.call::<_, usize>(&Request::TakeAtMost(1000), Some(payload), 0, LONG).await.unwrap_err();
    let NetError::Refused { message, .. } = &error else { panic!("{error}") };
    assert!(message.contains("41943040 bytes, more than the limit of 1000"), "{message}");
    let taken = client.call::<_, usize>(&Request::TakeAtMost(1000), Some(weights(1000)), 0, LONG).await;
    assert_eq!(taken.unwrap().0, 1000);
}

#[tokio::test]
async fn a_response_over_the_clients_limit_is_refused() {
    let run = run();
    let client = connect(&run).await;
    let error = client.call::<_, ()>(&Request::Length(1001), None, 1000, LONG).await.unwrap_err();
    assert!(matches!(error, NetError::TooLarge { bytes: 1001, limit: 1000, .. }), "{error}");
    client.call::<_, ()>(&Request::Length(1000), None, 1000, LONG).await.unwrap();
}

#[tokio::test]
async fn the_caller_learns_of_refusals_and_drops_and_the_connection_stands() {
    let run = run();
    let client = connect(&run).await;
    let error = client.call::<_, ()>(&Request::Refuse, None, 0, LONG).await.unwrap_err();
    assert!(error.to_string().contains("refused: the lease of path 3 was lost"), "{error}");
    let error = client.call::<_, ()>(&Request::Drop, None, 0, LONG).await.unwrap_err();
    assert!(matches!(error, NetError::Abandoned { .. }), "{error}");
    let error = client.call::<_, usize>(&Request::TakeAtMost(9), None, 0, LONG).await.unwrap_err();
    assert!(error.to_string().contains("no payload where one is expected"), "{error}");
    client.call::<_, Option<u64>>(&Request::Ping, None, 0, LONG).await.unwrap();
}

#[tokio::test]
async fn messages_of_another_kind_are_refused_by_both_ends() {
    let run = run();
    let client = connect(&run).await;
    let error = client.call::<_, ()>(&"no request", None, 0, LONG).await.unwrap_err();
    let NetError::Refused { message, .. } = &error else { panic!("{error}") };
    assert!(message.contains("not a message of this protocol"), "{message}");
    let error = client.call::<_, bool>(&Request::Echo, Some(weights(3)), 3, LONG).await.unwrap_err();
    assert!(matches!(error, NetError::Message { .. }), "{error}");
}

#[tokio::test]
async fn the_peers_are_named_and_a_closed_server_says_so() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let server = Server::bind(loopback(), &authority.server(now, DAY).unwrap(), Limits::default()).unwrap();
    let client = Client::connect(&token(&authority, &server), now, Limits::default()).await.unwrap();
    let peer = server.accept().await.unwrap();
    assert_eq!((peer.role(), peer.name()), ("worker", "a"));
    assert!(peer.to_string().starts_with("worker `a` at 127.0.0.1:"));

    server.close("the run is complete").await;
    let error = client.closed().await;
    assert!(error.to_string().ends_with("closed the connection: the run is complete"), "{error}");
    let error = client.call::<_, ()>(&0_u8, None, 0, LONG).await.unwrap_err();
    assert!(matches!(error, NetError::Closed { .. }), "{error}");
    assert!(server.accept().await.is_none());
    assert!(peer.accept_exchange().await.is_none());
}

#[tokio::test]
async fn the_last_response_arrives_although_the_server_closes_at_once() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let server = Server::bind(loopback(), &authority.server(now, DAY).unwrap(), Limits::default()).unwrap();
    let token = token(&authority, &server);
    tokio::spawn(async move {
        let peer = server.accept().await.unwrap();
        let mut exchange = peer.accept_exchange().await.unwrap();
        let round = exchange.request::<u64>().await.unwrap();
        exchange.respond(&round, Some(weights(1 << 20))).await.unwrap();
        server.close("done").await;
    });
    let client = Client::connect(&token, now, Limits::default()).await.unwrap();
    let (round, payload) = client.call::<u64, u64>(&7, None, 1 << 20, LONG).await.unwrap();
    assert_eq!((round, payload.unwrap().len()), (7, 1 << 20));
}

#[tokio::test]
async fn the_error_of_a_port_in_use_names_the_address() {
    let now = SystemTime::now();
    let identity = RunAuthority::create("run", now).unwrap().server(now, DAY).unwrap();
    let server = Server::bind(loopback(), &identity, Limits::default()).unwrap();
    let error = Server::bind(server.local_addr(), &identity, Limits::default()).map(|_| ()).unwrap_err();
    assert!(matches!(error, NetError::Bind { .. }));
    assert!(error.to_string().contains(&server.local_addr().to_string()), "{error}");
}

#[tokio::test]
async fn limits_that_can_not_work_are_refused() {
    let now = SystemTime::now();
    let identity = RunAuthority::create("run", now).unwrap().server(now, DAY).unwrap();
    for limits in [
        Limits { max_exchanges_per_peer: 0, ..Limits::default() },
        Limits { max_peers: usize::MAX, ..Limits::default() },
        Limits { keep_alive: Duration::from_secs(20), ..Limits::default() },
    ] {
        let result = Server::bind(loopback(), &identity, limits);
        assert!(matches!(result.map(|_| ()), Err(NetError::Setting { .. })));
    }
}

/// A runtime of a process of its own: dropped, it ends as a killed process does.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_coordinator_that_was_killed_and_started_again_frees_its_old_peers_at_once() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, DAY).unwrap();
    let (here, doomed) = (runtime(), runtime());

    let server = doomed.block_on(async { Server::bind(loopback(), &identity, Limits::default()).unwrap() });
    let token = token(&authority, &server);
    // Only a reset can end this connection within the test's time.
    let limits = Limits { idle_timeout: 10 * LONG, ..Limits::default() };
    let client = here.block_on(Client::connect(&token, now, limits)).unwrap();
    drop(doomed); // as a killed process: its tasks are gone and no farewell is sent
    drop(server);

    here.block_on(async {
        let authority = RunAuthority::from_pem(&authority.to_pem()).unwrap();
        let identity = authority.server(now, DAY).unwrap();
        let _server =
            Server::bind(token.addresses[0].parse().unwrap(), &identity, Limits::default()).unwrap();
        let error = tokio::time::timeout(LONG, client.call::<_, ()>(&0_u8, None, 0, LONG)).await.unwrap();
        assert!(matches!(error, Err(NetError::Lost { .. })), "{error:?}");
        Client::connect(&token, now, Limits::default()).await.unwrap();
    });
}

#[test]
fn a_killed_peer_is_silent_and_an_idle_one_is_not() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, DAY).unwrap();
    let (here, alive, doomed) = (runtime(), runtime(), runtime());
    // Only a killed peer's silence can show its end within the test's time.
    let limits =
        Limits { idle_timeout: 10 * LONG, keep_alive: Duration::from_millis(100), ..Limits::default() };
    let server = here.block_on(async { Server::bind(loopback(), &identity, limits.clone()).unwrap() });
    let token = token(&authority, &server);
    let join = |runtime: &Runtime| {
        // The peer never sends of its own accord.
        let limits = Limits { keep_alive: LONG, ..limits.clone() };
        let (accepted, client) = here.block_on(async {
            tokio::join!(server.accept(), runtime.spawn(join_with(token.clone(), now, limits)))
        });
        (accepted.unwrap(), client.unwrap())
    };
    let (idle, _client) = join(&alive);
    let (killed, client) = join(&doomed);
    drop(doomed); // as a killed process: its tasks are gone and no farewell is sent
    drop(client);
    let found = here.block_on(async { tokio::join!(idle.is_silent(), killed.is_silent()) });
    assert_eq!(found, (false, true));
}

async fn join_with(token: JoinToken, now: SystemTime, limits: Limits) -> Client {
    Client::connect(&token, now, limits).await.unwrap()
}
