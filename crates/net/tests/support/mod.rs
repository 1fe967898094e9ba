//! A server of a run on this machine.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use dipaco_net::{Limits, RunAuthority, Server};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub(crate) struct Run {
    pub(crate) authority: RunAuthority,
    pub(crate) server: Server,
}

impl Run {
    pub(crate) fn new(limits: Limits) -> Self {
        let now = SystemTime::now();
        let authority = RunAuthority::create("run", now).unwrap();
        let server = Server::bind(loopback(), &authority.server(now, DAY).unwrap(), limits).unwrap();
        Self { authority, server }
    }
}
