//! A load test of a server of completions over HTTP.
//!
//! The generator knows OpenAI's completions and nothing else of the server, so it measures other servers as well. Each
//! request is a stream, because only a stream shows when its tokens arrive.

mod client;
mod report;
mod workload;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::BenchError;
use client::{LoadClient, LoadOutcome};
pub use report::{Goodput, LatencyBounds, ServeLoadReport};
pub use workload::{Prompts, Workload};

/// Most requests of an open loop that run at a time. Each has a connection, and systems allow a process 1024 open files
/// or more.
const MOST_IN_FLIGHT: usize = 900;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Each of these clients sends its next request when the one before has ended.
    Closed {
        /// Number of clients.
        clients: usize,
    },
    /// Requests arrive at random times (Poisson), whether others have ended or not. Their latencies count from these
    /// times.
    Open {
        /// Mean number of requests per second.
        rate: f64,
    },
}

/// Options of [`serve_load`].
#[derive(Clone, Debug)]
pub struct ServeLoadOptions {
    /// Address of the server, as in `http://127.0.0.1:8000`.
    pub url: String,
    /// Key for the header `Authorization`.
    pub api_key: Option<String>,
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// Number of measured requests.
    pub requests: usize,
    /// Number of requests before them that are not measured.
    pub warm_up: usize,
    /// The content of the requests.
    pub workload: Workload,
    /// Time after which a request counts as failed.
    pub timeout: Duration,
    /// Bounds of the goodput.
    pub bounds: LatencyBounds,
}

/// Sends the requests and returns the measurement. `done` is called after each measured request with their number.
///
/// # Errors
/// [`BenchError::Url`] when the address can't be used, [`BenchError::Cancelled`] when `cancel` is cancelled, and
/// [`BenchError::NoAnswer`] when no request was answered.
pub async fn serve_load(
    options: ServeLoadOptions,
    cancel: CancellationToken,
    done: impl Fn(u64),
) -> Result<ServeLoadReport, BenchError> {
    let client = Arc::new(LoadClient::new(&options)?);
    let options = Arc::new(options);
    let work = async {
        // The first requests of a server load pages and caches, so they are not typical.
        for number in 0..options.warm_up {
            client.exchange(options.workload.request(number), Instant::now()).await;
        }
        let began = Instant::now();
        let exchanges = match options.arrivals {
            Arrivals::Closed { clients } => closed(&options, &client, clients, &done).await?,
            Arrivals::Open { rate } => open(&options, &client, rate, &done).await?,
        };
        Ok::<_, BenchError>((exchanges, began.elapsed()))
    };
    let (exchanges, took) = tokio::select! {
        found = work => found?,
        () = cancel.cancelled() => return Err(BenchError::Cancelled),
    };
    let report = ServeLoadReport::new(&options, &exchanges, took);
    if report.completed + report.refused == 0 {
        let why = report.failures.keys().next().cloned().unwrap_or_default();
        return Err(BenchError::NoAnswer { url: options.url.clone(), why });
    }
    Ok(report)
}

/// Clients that wait for their answers.
async fn closed(
    options: &Arc<ServeLoadOptions>,
    client: &Arc<LoadClient>,
    clients: usize,
    done: &impl Fn(u64),
) -> Result<Vec<LoadOutcome>, BenchError> {
    let next = Arc::new(AtomicUsize::new(0));
    let (send, mut received) = tokio::sync::mpsc::channel(clients.max(1));
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (next, options, client, send) =
            (Arc::clone(&next), Arc::clone(options), Arc::clone(client), send.clone());
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= options.requests {
                    break;
                }
                let request = options.workload.request(options.warm_up + number);
                if send.send(client.exchange(request, Instant::now()).await).await.is_err() {
                    break;
                }
            }
        });
    }
    drop(send);
    let mut exchanges = Vec::with_capacity(options.requests);
    while let Some(exchange) = received.recv().await {
        exchanges.push(exchange);
        done(exchanges.len() as u64);
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    Ok(exchanges)
}

/// Requests at the times of the workload.
async fn open(
    options: &Arc<ServeLoadOptions>,
    client: &Arc<LoadClient>,
    rate: f64,
    done: &impl Fn(u64),
) -> Result<Vec<LoadOutcome>, BenchError> {
    let (began, room) = (Instant::now(), Arc::new(Semaphore::new(MOST_IN_FLIGHT)));
    let mut tasks = JoinSet::new();
    let mut exchanges = Vec::with_capacity(options.requests);
    for (number, at) in options.workload.arrivals(rate).take(options.requests).enumerate() {
        let at = began + at;
        tokio::time::sleep_until(at).await;
        let (room, options, client) = (Arc::clone(&room), Arc::clone(options), Arc::clone(client));
        tasks.spawn(async move {
            let Ok(_place) = room.try_acquire() else { return LoadOutcome::not_sent() };
            client.exchange(options.workload.request(options.warm_up + number), at).await
        });
        while let Some(exchange) = tasks.try_join_next() {
            exchanges.push(exchange?);
            done(exchanges.len() as u64);
        }
    }
    while let Some(exchange) = tasks.join_next().await {
        exchanges.push(exchange?);
        done(exchanges.len() as u64);
    }
    Ok(exchanges)
}
