//! The address by which other processes reach a process that listens.

/// `address` as `host:port`, where port 0 stands for the port that the system chose for the socket: `bound`.
pub(crate) fn with_bound_port(address: &str, bound: u16) -> String {
    match address.strip_suffix(":0") {
        Some(host) => format!("{host}:{bound}"),
        None => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_0_is_the_port_of_the_socket() {
        assert_eq!(with_bound_port("node-3.example:0", 7440), "node-3.example:7440");
        assert_eq!(with_bound_port("[::1]:0", 7440), "[::1]:7440");
        for other in ["node-3.example:80", "10.0.0.0:7000", "host:10"] {
            assert_eq!(with_bound_port(other, 7440), other);
        }
    }
}
