//! The value of `--http`.

use std::net::SocketAddr;

/// Reads `PORT` or `ADDRESS:PORT`.
pub(crate) fn http_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| format!("{text:?} is neither a port nor an address such as 127.0.0.1:9440"))
}
