//! A UDP relay that delays, limits and loses datagrams like a long link, for machines without `tc netem`.
//!
//! `shaped_relay LISTEN TARGET DELAY_MS RATE_MBIT LOSS_PERCENT` forwards datagrams from LISTEN to TARGET and back.
//! Each direction of each peer adds DELAY_MS, carries RATE_MBIT and loses LOSS_PERCENT of its datagrams (the same
//! datagrams in every run). It also loses datagrams that would wait for more than a second. It runs until it is
//! killed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Delay, rate and loss of a link.
#[derive(Clone, Copy)]
struct Shape {
    delay: Duration,
    /// Bits per second.
    rate: f64,
    /// Share of lost datagrams, 0 to 1.
    loss: f64,
}

/// One direction of a link. Datagrams leave it in the order of their arrival.
struct Direction {
    shape: Shape,
    /// Time at which the previous datagram is on the line.
    free: Instant,
    /// State of the random generator for losses.
    state: u64,
    out: SyncSender<(Instant, Vec<u8>)>,
}

impl Direction {
    fn new(shape: Shape, seed: u64, send: impl Fn(&[u8]) + Send + 'static) -> Self {
        // More than a second of traffic on the fastest link.
        let (out, waiting) = sync_channel::<(Instant, Vec<u8>)>(200_000);
        thread::spawn(move || {
            for (due, datagram) in waiting {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                send(&datagram);
            }
        });
        Self { shape, free: Instant::now(), state: seed, out }
    }

    fn push(&mut self, datagram: &[u8]) {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = (self.state >> 40) as f64 / (1u64 << 24) as f64;
        let now = Instant::now();
        let begins = self.free.max(now);
        if chance < self.shape.loss || begins > now + Duration::from_secs(1) {
            return;
        }
        self.free = begins + Duration::from_secs_f64(datagram.len() as f64 * 8.0 / self.shape.rate);
        // A full queue loses the datagram, as in a router.
        let _ = self.out.try_send((self.free + self.shape.delay, datagram.to_vec()));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: shaped_relay LISTEN TARGET DELAY_MS RATE_MBIT LOSS_PERCENT";
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target, delay, rate, loss] = words.as_slice() else { return Err(usage.into()) };
    let target: SocketAddr = target.parse()?;
    let shape = Shape {
        delay: Duration::from_secs_f64(delay.parse::<f64>()? / 1e3),
        rate: rate.parse::<f64>()? * 1e6,
        loss: loss.parse::<f64>()? / 100.0,
    };
    let outside = Arc::new(UdpSocket::bind(listen)?);
    let mut peers: HashMap<SocketAddr, Direction> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    loop {
        let (length, peer) = outside.recv_from(&mut buffer)?;
        let direction = match peers.entry(peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let seed = u64::from(peer.port());
                let inside = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
                inside.connect(target)?;
                let (answers, back) = (inside.clone(), outside.clone());
                thread::spawn(move || {
                    let mut direction = Direction::new(shape, !seed, move |datagram| {
                        let _ = back.send_to(datagram, peer);
                    });
                    let mut buffer = vec![0; 65_536];
                    // Ignore refused datagrams: the target may be restarting.
                    loop {
                        if let Ok(length) = answers.recv(&mut buffer) {
                            direction.push(&buffer[..length]);
                        }
                    }
                });
                place.insert(Direction::new(shape, seed, move |datagram| {
                    let _ = inside.send(datagram);
                }))
            }
        };
        direction.push(&buffer[..length]);
    }
}
