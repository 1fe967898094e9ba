//! The memory of a server under one token with many connections and half-sent uploads.
//!
//! The server runs in a process of its own, so that its memory can be measured apart from its attackers' memory.
//! `DIPACO_ATTACKERS` sets the number of connections.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program of its own, whose output is its result"
)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dipaco_net::{Client, JoinToken, Limits, RunAuthority, Server};

const DAY: Duration = Duration::from_secs(86_400);
const PIECE: usize = 2 << 20;
/// Uploads of each connection.
const UPLOADS: usize = 16;
/// Memory of a process with an idle server and the bookkeeping of its connections, in bytes.
const IDLE: u64 = 64 << 20;

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::var_os("DIPACO_MEMORY_SERVER").is_some() {
        runtime.block_on(serve());
    } else if std::env::args().any(|argument| argument == "--list") {
        println!("half_sent_uploads_of_one_token_stay_within_its_share: test");
    } else {
        let connections = std::env::var("DIPACO_ATTACKERS").map_or(100, |count| count.parse().unwrap());
        runtime.block_on(half_sent_uploads_of_one_token_stay_within_its_share(connections));
    }
}

/// Receives pieces as a coordinator does, until standard input closes.
async fn serve() {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, DAY).unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), &identity, Limits::default()).unwrap();
    let addresses = vec![server.local_addr().to_string()];
    println!("{}", authority.issue("worker", "shared", addresses, now, DAY).unwrap());
    tokio::spawn(async move {
        while let Some(peer) = server.accept().await {
            tokio::spawn(async move {
                while let Some(mut exchange) = peer.accept_exchange().await {
                    tokio::spawn(async move {
                        if exchange.request::<u64>().await.is_err() {
                            return;
                        }
                        exchange.reserve(PIECE as u64).await;
                        exchange.receive_payload(PIECE as u64).await.ok();
                        // Keeps the piece until the connection ends, as a slow disk would.
                        exchange.abandoned().await;
                    });
                }
            });
        }
    });
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
}

async fn half_sent_uploads_of_one_token_stay_within_its_share(connections: u64) {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .env("DIPACO_MEMORY_SERVER", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut token = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut token).unwrap();
    let token: JoinToken = token.parse().unwrap();
    let mut attackers = Vec::new();
    for _ in 0..connections {
        attackers.push(Client::connect(&token, SystemTime::now(), Limits::default()).await.unwrap());
    }
    let payload = Bytes::from(vec![7; PIECE]);
    // Nobody gets an answer. The calls end when the server has stopped taking bytes from them.
    let quiet = Duration::from_secs(10);
    let calls = attackers.iter().flat_map(|client| {
        let payload = payload.clone();
        (0..UPLOADS).map(move |_| client.call::<u64, u64>(&1, Some(payload.clone()), 0, quiet))
    });
    futures_of(calls.collect()).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    drop(server.stdin.take());
    server.wait().unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = 1024 * peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
    let bound = Limits::default().token_memory(connections) + IDLE;
    println!(
        "{connections} connections, {UPLOADS} half-sent uploads each: peak {} MiB, bound {} MiB",
        peak >> 20,
        bound >> 20
    );
    assert!(peak < bound);
}

/// Waits for all calls at once.
async fn futures_of<F: Future>(calls: Vec<F>) {
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
