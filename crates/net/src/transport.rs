//! QUIC settings of both ends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use quinn::udp::{UdpSockRef, UdpSocketState};
use quinn::{EndpointConfig, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::token_share::BASE_WINDOW_BYTES;
use crate::{Limits, NetError};

/// Large datagrams halve the CPU time per byte on network paths that carry them (loopback, jumbo frames); quinn probes
/// the size. Above about 6,500 bytes segmentation offload stops working, which would cost more than large datagrams
/// gain.
const MAX_DATAGRAM_BYTES: u16 = 6400;

/// Keeps the kernel from dropping bursts between two polls of the socket.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Streams that this end accepts from the other end.
#[derive(Clone, Copy)]
pub(crate) enum Accepts {
    /// A server accepts operations.
    Exchanges,
    /// A client accepts the welcome.
    Welcome,
}

/// Codes of closed connections and reset streams.
pub(crate) mod code {
    use quinn::VarInt;

    pub(crate) const DONE: VarInt = VarInt::from_u32(0);
    pub(crate) const BUSY: VarInt = VarInt::from_u32(1);
    pub(crate) const ABANDONED: VarInt = VarInt::from_u32(2);
    pub(crate) const UNNAMED: VarInt = VarInt::from_u32(3);
    pub(crate) const REVOKED: VarInt = VarInt::from_u32(4);
}

pub(crate) fn transport(limits: &Limits, accepts: Accepts) -> Result<Arc<TransportConfig>, NetError> {
    limits.check()?;
    let idle = limits.idle_timeout.try_into().map_err(|_| NetError::Setting {
        what: "idle_timeout",
        value: format!("{} s", limits.idle_timeout.as_secs_f64()),
        reason: "it is too long",
    })?;
    // A server widens the window of a verified peer, as far as the share of the peer's token allows.
    let (exchanges, welcomes, window) = match accepts {
        Accepts::Exchanges => (limits.max_exchanges_per_peer, 0, BASE_WINDOW_BYTES),
        Accepts::Welcome => (0, 1, limits.connection_window_bytes),
    };
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MAX_DATAGRAM_BYTES);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(exchanges.into())
        .max_concurrent_uni_streams(VarInt::from_u32(welcomes))
        .stream_receive_window(limits.stream_window_bytes.into())
        .receive_window(window.into())
        .send_window(limits.connection_window_bytes.into())
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(limits.keep_alive))
        .mtu_discovery_config(Some(discovery));
    Ok(Arc::new(config))
}

pub(crate) fn set_datagram_size(config: &mut EndpointConfig) -> Result<(), NetError> {
    let set = config.max_udp_payload_size(MAX_DATAGRAM_BYTES);
    set.map(|_| ()).map_err(|error| NetError::Identity { what: "set up QUIC", reason: error.to_string() })
}

/// Opens a socket with large buffers; the kernel may grant smaller buffers.
pub(crate) fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    for result in [
        state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES),
        state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER_BYTES),
    ] {
        if let Err(error) = result {
            tracing::debug!(%error, "the socket keeps the system's buffer size");
        }
    }
    Ok(socket)
}
