//! The values of `--http`, `--address` and `--advertise`.

use std::net::{SocketAddr, SocketAddrV6};

/// Reads `PORT` or `ADDRESS:PORT`.
pub(crate) fn http_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| format!("{text:?} is neither a port nor an address such as 127.0.0.1:9440"))
}

/// Reads `HOST:PORT`, where an IPv6 address stands in brackets. The name of a host is not looked up: it may be known only where
/// the token goes.
pub(crate) fn host_port(text: &str) -> Result<String, String> {
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        let ipv6 = text.parse::<SocketAddrV6>().is_ok();
        let name = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "[]:/@,".contains(c));
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        (ipv6 || name) && digits && port.parse::<u16>().is_ok()
    });
    valid
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text:?} is not HOST:PORT, as in lead.example:7440"))
}

/// [`host_port`] of a process that listens already: nobody puts its port in the place of port 0.
pub(crate) fn known_host_port(text: &str) -> Result<String, String> {
    let address = host_port(text)?;
    if address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>() == Ok(0)) {
        return Err(format!("{text:?} has port 0, which reaches nobody: give the port of the coordinator"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_name_or_an_address_and_a_port() {
        for good in ["lead.example:7440", "lead:0", "my_host-1:65535", "10.0.0.1:7440", "[::1]:7440"] {
            assert_eq!(host_port(good), Ok(good.to_owned()));
        }
        for wrong in [
            "",
            "nohost",
            ":7440",
            "host:",
            "host:99999",
            "host:+1",
            "host:x",
            "::1:7440",
            "[::1]",
            "[lead]:1",
            "a b:1",
            "https://lead:1",
            "lead:1/x",
        ] {
            let message = host_port(wrong).unwrap_err();
            assert!(message.contains("is not HOST:PORT") && message.contains(wrong), "{message}");
        }
    }

    #[test]
    fn a_port_alone_is_of_the_loopback() {
        assert_eq!(http_address("9440"), Ok(SocketAddr::from(([127, 0, 0, 1], 9440))));
        assert_eq!(http_address("0.0.0.0:1"), Ok(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert!(http_address("lead:1").unwrap_err().contains("127.0.0.1:9440"));
    }
}
