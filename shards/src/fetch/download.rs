//! Downloading one file over HTTP.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use flate2::bufread::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use ureq::http::{HeaderMap, Response};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::FetchConfig;
use crate::progress::Watch;
use crate::{PrepareProgress, ShardsError};

/// An attempt that receives this many bytes is progress: the count of failures starts again.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Longest pause that is taken at a server's request.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

pub(super) struct Downloader<'a> {
    agent: Agent,
    retries: u32,
    watch: Watch<'a>,
    sleep: &'a dyn Fn(Duration),
}

/// The server's description of the file whose start lies in a `.part`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PartState {
    etag: Option<String>,
    total: Option<u64>,
}

/// The reason of a failed attempt.
enum Failure {
    /// Another attempt may succeed; with the pause that the server requests.
    Passing(String, Option<Duration>),
    /// Another attempt would fail too.
    Final(ShardsError),
}

impl From<ShardsError> for Failure {
    fn from(error: ShardsError) -> Self {
        Self::Final(error)
    }
}

fn passing(reason: impl Into<String>) -> Failure {
    Failure::Passing(reason.into(), None)
}

impl<'a> Downloader<'a> {
    pub(super) fn new(
        config: &FetchConfig,
        progress: &'a dyn PrepareProgress,
        cancel: &'a AtomicBool,
        sleep: &'a dyn Fn(Duration),
    ) -> Self {
        let timeout = Some(Duration::from_secs(config.timeout_seconds));
        // The machine's certificates, so that a proxy of a company which signs with its own authority can be passed.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut builder = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Ranges and the expected length count bytes of the stored file, so the transfer must not compress it.
            .accept_encoding("identity")
            .user_agent(concat!("dipaco/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout);
        if !config.proxy {
            builder = builder.proxy(None);
        }
        let watch = Watch { progress, cancel };
        Self { agent: builder.build().new_agent(), retries: config.retries, watch, sleep }
    }

    /// Downloads `url` to `path`; returns the number of requests. `check` says what is wrong with a file that has arrived.
    pub(super) fn download(
        &self,
        url: &str,
        path: &Path,
        check: &dyn Fn(&Path) -> Result<(), String>,
    ) -> Result<u32, ShardsError> {
        let part = sibling(path, ".part");
        let mut begun = false;
        let (mut requests, mut failures) = (0, 0);
        loop {
            self.watch.check_cancelled()?;
            requests += 1;
            let before = length(&part);
            let outcome = self.attempt(url, &part, &mut begun).and_then(|()| {
                check(&part).map_err(|problem| {
                    // All bytes arrived, so a next attempt would find the same damage: it starts anew.
                    forget(&part).map_or_else(Failure::Final, |()| passing(problem))
                })
            });
            let (reason, pause) = match outcome {
                Ok(()) => break,
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(reason, pause)) => (reason, pause),
            };
            if length(&part) >= before + PROGRESS_BYTES {
                failures = 0;
            }
            failures += 1;
            if failures > self.retries {
                return Err(ShardsError::Fetch {
                    url: url.to_owned(),
                    reason: format!(
                        "{reason}, {failures} times in a row: check the network and run the command again; it continues where it stopped"
                    ),
                });
            }
            tracing::warn!(url, reason, failures, "download interrupted; trying again");
            let own = Duration::from_secs(1 << (failures - 1).min(6)).min(LONGEST_PAUSE);
            self.pause(pause.map_or(own, |asked| asked.min(LONGEST_RETRY_AFTER)))?;
        }
        self.watch.progress.end();
        std::fs::rename(&part, path).map_err(ShardsError::io("rename", &part))?;
        remove(&state_path(&part))?;
        Ok(requests)
    }

    /// Makes one request, which continues the part file if there is one. Ok once all bytes have arrived.
    fn attempt(&self, url: &str, part: &Path, begun: &mut bool) -> Result<(), Failure> {
        let state = known_state(part)?;
        let offset = if state.is_some() { length(part) } else { 0 };
        if state.as_ref().is_some_and(|state| state.total == Some(offset) && offset > 0) {
            return Ok(());
        }
        let mut request = self.agent.get(url);
        if offset > 0 {
            request = request.header("Range", format!("bytes={offset}-"));
        }
        let mut response = request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Final(ShardsError::Fetch {
                url: url.to_owned(),
                reason: format!("this is not an address ({error}): correct the base URL"),
            }),
            error if is_distrust(&error) => Failure::Final(ShardsError::Fetch {
                url: url.to_owned(),
                reason: format!(
                    "this machine does not trust the server's certificate ({error}): if a proxy signs with an authority of its own, \
                     install that authority's certificate, or name its file in SSL_CERT_FILE"
                ),
            }),
            error => passing(format!("no answer ({error})")),
        })?;
        let (state, offset) = accept(url, part, &response, state, offset)?;
        if !std::mem::replace(begun, true) {
            let name = part.file_stem().unwrap_or_default().to_string_lossy();
            self.watch.progress.begin(&name, state.total.unwrap_or(0));
            self.watch.progress.advance(offset, 0);
        }
        let io = |error| Failure::Final(ShardsError::io("write", part)(error));
        let mut file = OpenOptions::new().append(true).create(true).open(part).map_err(io)?;
        file.set_len(offset).map_err(io)?;
        write_state(part, &state)?;
        let received = self.receive(&mut response, &mut file, part);
        // A broken download is kept too: the next attempt continues behind these bytes.
        file.sync_all().map_err(io)?;
        let arrived = offset + received?;
        match state.total {
            Some(total) if arrived < total => {
                Err(passing(format!("the answer ended after {arrived} of {total} bytes")))
            }
            Some(total) if arrived > total => {
                forget(part)?;
                Err(passing(format!("the answer has {arrived} bytes instead of {total}")))
            }
            _ => Ok(()),
        }
    }

    fn receive(&self, response: &mut Response<Body>, file: &mut File, part: &Path) -> Result<u64, Failure> {
        let mut body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; 128 * 1024];
        let mut received = 0;
        loop {
            self.watch.check_cancelled()?;
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(received),
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(passing(format!("the connection broke ({error})"))),
            };
            file.write_all(&buffer[..count]).map_err(ShardsError::io("write", part))?;
            received += count as u64;
            self.watch.progress.advance(count as u64, 0);
        }
    }

    fn pause(&self, mut left: Duration) -> Result<(), ShardsError> {
        while !left.is_zero() {
            let slice = left.min(Duration::from_secs(1));
            (self.sleep)(slice);
            left -= slice;
            self.watch.check_cancelled()?;
        }
        Ok(())
    }
}

/// True if the server's certificate was refused: another attempt would be refused too.
fn is_distrust(error: &ureq::Error) -> bool {
    let tls = match error {
        ureq::Error::Rustls(tls) => Some(tls),
        ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    };
    matches!(tls, Some(rustls::Error::InvalidCertificate(_)))
}

/// Reads the status and headers of an answer; returns the file's description and the offset of the answer's first byte.
/// `state` and `offset` describe the part file.
fn accept(
    url: &str,
    part: &Path,
    response: &Response<Body>,
    state: Option<PartState>,
    offset: u64,
) -> Result<(PartState, u64), Failure> {
    let status = response.status().as_u16();
    let headers = response.headers();
    let etag = header(headers, "etag").map(str::to_owned);
    let fail = |reason: &str| {
        let reason = format!("the server answers {status}: {reason}");
        Err(Failure::Final(ShardsError::Fetch { url: url.to_owned(), reason }))
    };
    match status {
        200 => {
            let total = header(headers, "content-length").and_then(|length| length.parse().ok());
            Ok((PartState { etag, total }, 0))
        }
        206 => {
            let range = header(headers, "content-range").and_then(content_range);
            let known = state.unwrap_or_default();
            match range {
                Some((start, total))
                    if start == offset
                        && offset > 0
                        && etag == known.etag
                        && known.total.is_none_or(|t| t == total) =>
                {
                    Ok((PartState { etag, total: Some(total) }, offset))
                }
                _ => {
                    forget(part)?;
                    Err(passing("the file changed on the server, starting anew"))
                }
            }
        }
        416 => {
            forget(part)?;
            Err(passing("the server has a shorter file than the part received before, starting anew"))
        }
        408 | 429 | 500..=599 => {
            let pause = header(headers, "retry-after").and_then(|seconds| seconds.trim().parse().ok());
            Err(Failure::Passing(format!("the server answers {status}"), pause.map(Duration::from_secs)))
        }
        401 | 403 => fail("it requires access rights; check the base URL, or fetch the file by other means"),
        404 | 410 => fail("it does not have this file; check the base URL and the range of files"),
        _ => fail("this is not a file; check the base URL"),
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// First byte and total length of `bytes FIRST-LAST/TOTAL`.
fn content_range(value: &str) -> Option<(u64, u64)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total) = (first.parse().ok()?, last.parse::<u64>().ok()?, total.parse().ok()?);
    (first <= last && last < total).then_some((first, total))
}

/// Reads a gzip file to its end.
pub(super) fn check_gzip(path: &Path) -> Result<(), String> {
    read_gzip(path).map_err(|error| format!("the received file is no whole gzip file ({error})"))
}

fn read_gzip(path: &Path) -> std::io::Result<()> {
    let mut decoder = MultiGzDecoder::new(BufReader::with_capacity(1 << 17, File::open(path)?));
    let mut buffer = vec![0; 1 << 17];
    let mut bytes = 0;
    loop {
        match decoder.read(&mut buffer)? {
            0 if bytes == 0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            0 => return Ok(()),
            count => bytes += count,
        }
    }
}

/// The description of a part file; a part file without one is removed.
fn known_state(part: &Path) -> Result<Option<PartState>, ShardsError> {
    // Bytes of an unknown file must not be continued.
    let state = std::fs::read(state_path(part)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if state.is_none() {
        forget(part)?;
    }
    Ok(state)
}

fn write_state(part: &Path, state: &PartState) -> Result<(), ShardsError> {
    let path = state_path(part);
    let bytes =
        serde_json::to_vec(state).map_err(|source| ShardsError::Json { path: path.clone(), source })?;
    std::fs::write(&path, bytes).map_err(ShardsError::io("write", &path))
}

fn forget(part: &Path) -> Result<(), ShardsError> {
    remove(part)?;
    remove(&state_path(part))
}

fn remove(path: &Path) -> Result<(), ShardsError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(ShardsError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn state_path(part: &Path) -> PathBuf {
    sibling(part, ".json")
}

fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
