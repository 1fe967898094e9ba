//! The address by which other processes reach a process that listens.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `address` as `host:port`, where port 0 stands for the port that the system chose for the socket: `bound`.
pub(crate) fn with_bound_port(address: &str, bound: u16) -> String {
    match address.strip_suffix(":0") {
        Some(host) => format!("{host}:{bound}"),
        None => address.to_owned(),
    }
}

/// The address by which processes of this machine reach the socket `bound`. A socket on all addresses, `0.0.0.0` or `[::]`, answers at
/// the loopback, and nobody can send to the unspecified address itself.
pub(crate) fn reached_from_here(mut bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => bound.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => bound.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_on_all_addresses_is_reached_by_the_loopback() {
        for (bound, reached) in [
            ("0.0.0.0:7440", "127.0.0.1:7440"),
            ("[::]:7440", "[::1]:7440"),
            ("10.0.0.1:7440", "10.0.0.1:7440"),
            ("127.0.0.1:80", "127.0.0.1:80"),
        ] {
            assert_eq!(reached_from_here(bound.parse().unwrap()).to_string(), reached);
        }
    }

    #[test]
    fn port_0_is_the_port_of_the_socket() {
        assert_eq!(with_bound_port("node-3.example:0", 7440), "node-3.example:7440");
        assert_eq!(with_bound_port("[::1]:0", 7440), "[::1]:7440");
        for other in ["node-3.example:80", "10.0.0.0:7000", "host:10"] {
            assert_eq!(with_bound_port(other, 7440), other);
        }
    }
}
