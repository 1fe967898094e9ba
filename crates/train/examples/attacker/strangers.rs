//! Handshakes that begin and never end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, JoinToken, Limits};
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::Failure;

/// How long a stranger answers demands for a proof of its address, and repeats itself.
const PERSISTENCE: Duration = Duration::from_secs(5);
/// Addresses of the strangers, beside that of honest workers on this machine.
const OTHER_ADDRESSES: u64 = 250;

/// Begins so many handshakes a minute. `own` of ten come from the address of the honest workers.
pub(crate) async fn begin_handshakes(
    token: JoinToken,
    duration: Duration,
    each_minute: u32,
    own: u32,
) -> Result<Value, Failure> {
    let first = token.addresses.first().ok_or("the token has no address")?;
    let server = tokio::net::lookup_host(first).await?.next().ok_or("the token has no address")?;
    let (token, begun) = (Arc::new(token), Arc::new(AtomicU64::new(0)));
    let mut ticks = interval(Duration::from_mins(1) / each_minute);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut strangers, mut number, started) = (JoinSet::new(), 0_u64, Instant::now());
    while started.elapsed() < duration {
        ticks.tick().await;
        let from = if number % 10 < u64::from(own) {
            Ipv4Addr::LOCALHOST
        } else {
            Ipv4Addr::new(127, 0, 1, (1 + number % OTHER_ADDRESSES) as u8)
        };
        number += 1;
        let (token, begun) = (token.clone(), begun.clone());
        strangers.spawn(async move {
            let half_open = half_open(&token, server, from.into(), &begun);
            // The end of this time is the expected one.
            matches!(timeout(PERSISTENCE, half_open).await, Ok(Err(_)))
        });
        while strangers.try_join_next().is_some() {}
    }
    let seconds = started.elapsed().as_secs_f64();
    let begun = begun.load(Ordering::Relaxed);
    Ok(
        json!({ "started": number, "begun": begun, "seconds": seconds, "begun_each_minute": begun as f64 * 60.0 / seconds }),
    )
}

/// Passes the datagrams of a client to the server, and back only its demands for a proof of the address (QUIC Retry). So
/// the client begins a handshake and never hears of the rest. Counts a handshake when the server has its address proved.
async fn half_open(
    token: &JoinToken,
    server: SocketAddr,
    from: IpAddr,
    begun: &AtomicU64,
) -> Result<(), Failure> {
    let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let back = UdpSocket::bind((from, 0)).await?;
    back.connect(server).await?;
    let mut through = token.clone();
    through.addresses = vec![front.local_addr()?.to_string()];
    let limits = Limits { connect_timeout: 2 * PERSISTENCE, ..Limits::default() };
    tokio::select! {
        ended = relay(&front, &back, begun) => ended,
        _ = Client::connect(&through, SystemTime::now(), limits) => Ok(()),
    }
}

/// Passes datagrams on until a socket fails.
async fn relay(front: &UdpSocket, back: &UdpSocket, begun: &AtomicU64) -> Result<(), Failure> {
    let (mut to_server, mut to_client) = (vec![0; 65_535], vec![0; 65_535]);
    let (mut client, mut is_begun) = (None, false);
    loop {
        tokio::select! {
            received = front.recv_from(&mut to_server) => {
                let (length, sender) = received?;
                client = Some(sender);
                back.send(&to_server[..length]).await?;
            }
            received = back.recv(&mut to_client) => {
                let length = received?;
                let is_retry = to_client[0] & 0xf0 == 0xf0;
                if let (true, Some(client)) = (is_retry, client) {
                    front.send_to(&to_client[..length], client).await?;
                } else if !is_begun {
                    // The server has answered with its part of the handshake.
                    is_begun = true;
                    begun.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
