//! Checks of the connection between workers and a coordinator: UDP and QUIC over loopback.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, Limits, NetError, RunAuthority, Server};

use super::finding::Finding;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(5);
const HOUR: Duration = Duration::from_secs(3600);
const FIREWALL: &str = "let the firewall or the container allow UDP";

pub(super) fn check() -> Vec<Finding> {
    let udp = match udp() {
        Ok(()) => Finding::ok("UDP", "a datagram came through on loopback"),
        Err(error) => {
            return vec![Finding::fail("UDP", format!("no datagram came through: {error}"), FIREWALL)];
        }
    };
    let quic = match quic() {
        Ok(()) => Finding::ok("QUIC", "a mutually authenticated connection on loopback works"),
        Err(error) => Finding::fail("QUIC", error, FIREWALL),
    };
    vec![udp, quic]
}

fn udp() -> std::io::Result<()> {
    let (sender, receiver) = (UdpSocket::bind(LOOPBACK)?, UdpSocket::bind(LOOPBACK)?);
    receiver.set_read_timeout(Some(PATIENCE))?;
    sender.send_to(b"dipaco", receiver.local_addr()?)?;
    let mut buffer = [0; 16];
    receiver.recv_from(&mut buffer).map(drop)
}

fn quic() -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match tokio::time::timeout(PATIENCE, exchange()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    })
}

/// A server and a client of a run that exists only for this check.
async fn exchange() -> Result<(), NetError> {
    let now = SystemTime::now();
    let authority = RunAuthority::create("doctor", now)?;
    let server = Server::bind(LOOPBACK, &authority.server(now, HOUR)?, Limits::default())?;
    let token = authority.issue("worker", "doctor", vec![server.local_addr().to_string()], now, HOUR)?;
    let serve = async {
        if let Some(peer) = server.accept().await
            && let Some(mut exchange) = peer.accept_exchange().await
        {
            let number: u64 = exchange.request().await?;
            exchange.respond(&number, None).await?;
            peer.closed().await;
        }
        Ok(())
    };
    let ask = async {
        let client = Client::connect(&token, now, Limits::default()).await?;
        let result = client.call::<u64, u64>(&42, None, 0, PATIENCE).await.map(drop);
        client.close("done").await;
        result
    };
    let (served, asked) = tokio::join!(serve, ask);
    asked.and(served)
}
