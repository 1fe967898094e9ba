use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::NoProgress;

/// The server's behaviour for one request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Sends the file, or the requested range.
    Right,
    /// Sends the same, but closes the connection after this many bytes of the body.
    Cut(usize),
    /// Sends the whole file even if a range was requested.
    IgnoreRange,
    /// Announces and sends the whole file without this many last bytes.
    Short(usize),
    /// Sends the right number of bytes, one of them changed.
    Changed,
    /// Sends a range of a file with another ETag.
    OtherTag,
    /// Sends a status, with the seconds of Retry-After.
    Status(u16, Option<u64>),
    /// Redirects to the same path.
    Redirect,
    /// Closes the connection without an answer.
    HangUp,
}

/// A server on loopback that gives each request the next answer of a script, and right answers after its end.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(content: Vec<u8>, script: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/en", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut script) = (requests.clone(), VecDeque::from(script.to_vec()));
        // The thread ends with the test's process; it waits in accept.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = read_head(&mut stream);
                seen.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
                let answer = script.pop_front().unwrap_or(Answer::Right);
                // The client may hang up first.
                let _ = answer_with(&mut stream, answer, &head, &content);
            }
        });
        Self { url, requests }
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn answer_with(stream: &mut TcpStream, answer: Answer, head: &str, content: &[u8]) -> std::io::Result<()> {
    let lower = head.to_lowercase();
    let range = lower
        .lines()
        .find_map(|line| line.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let start = range.filter(|_| !matches!(answer, Answer::IgnoreRange | Answer::Short(_)));
    let mut body = content[start.unwrap_or(0)..].to_vec();
    let mut status = match start {
        Some(start) => format!(
            "206 Partial Content\r\nContent-Range: bytes {start}-{}/{}",
            content.len() - 1,
            content.len()
        ),
        None => "200 OK".to_owned(),
    };
    let mut tag = "one";
    let mut send = usize::MAX;
    match answer {
        Answer::Right | Answer::IgnoreRange => {}
        Answer::Cut(bytes) => send = bytes,
        Answer::Short(bytes) => body.truncate(body.len() - bytes),
        Answer::Changed => body[content.len() / 2] ^= 0xFF,
        Answer::OtherTag => tag = "two",
        Answer::Status(code, after) => {
            status = format!("{code} No");
            if let Some(seconds) = after {
                status += &format!("\r\nRetry-After: {seconds}");
            }
            body = b"an error page".to_vec();
        }
        Answer::Redirect => {
            let path = head.split(' ').nth(1).unwrap_or_default();
            status = format!("302 Found\r\nLocation: {path}");
            body.clear();
        }
        Answer::HangUp => return Ok(()),
    }
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"{tag}\"\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(&body[..length.min(send)])
}

/// A gzip file of some 100 kB.
fn content() -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut state = 1u32;
    for _ in 0..20_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        writeln!(encoder, "{{\"text\":\"{state}\"}}").unwrap();
    }
    encoder.finish().unwrap()
}

struct Outcome {
    result: Result<FetchReport, ShardsError>,
    requests: usize,
    slept: Duration,
    file: Option<Vec<u8>>,
    names: Vec<String>,
}

fn fetch_into(folder: &Path, content: Vec<u8>, script: &[Answer]) -> Outcome {
    let server = Server::start(content, script);
    let config = FetchConfig { base_url: server.url.clone(), retries: 3, proxy: false, ..Default::default() };
    let slept = Mutex::new(Duration::ZERO);
    let sleep = |time: Duration| *slept.lock().unwrap() += time;
    let result = fetch_c4(&config, folder, &NoProgress, &AtomicBool::new(false), &sleep);
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    Outcome {
        result,
        requests: server.requests(),
        slept: slept.into_inner().unwrap(),
        file: std::fs::read(folder.join("c4-train.00000-of-01024.json.gz")).ok(),
        names,
    }
}

fn fetch(script: &[Answer]) -> Outcome {
    fetch_into(tempfile::tempdir().unwrap().path(), content(), script)
}

#[test]
fn passing_faults_end_in_the_right_file() {
    use Answer::*;
    let cases: [(&[Answer], usize, u64); 10] = [
        (&[], 1, 0),
        (&[Redirect], 2, 0),
        (&[Cut(40_000), Cut(1000)], 3, 3),
        (&[Status(503, None), Status(500, None)], 3, 3),
        (&[Status(429, Some(7))], 2, 7),
        (&[HangUp], 2, 1),
        (&[Cut(40_000), IgnoreRange], 2, 1),
        (&[Short(100)], 2, 1),
        (&[Changed], 2, 1),
        (&[Cut(40_000), OtherTag], 3, 3),
    ];
    for (script, requests, slept) in cases {
        let outcome = fetch(script);
        assert_eq!(
            outcome.result.as_ref().map(|report| report.files[0].bytes).ok(),
            Some(content().len() as u64),
            "{script:?}: {:?}",
            outcome.result
        );
        assert!(outcome.file.as_deref() == Some(&content()[..]), "{script:?}");
        assert_eq!((outcome.requests, outcome.slept.as_secs()), (requests, slept), "{script:?}");
        assert_eq!(outcome.names.len(), 1, "{script:?}: {:?}", outcome.names);
    }
}

#[test]
fn lasting_faults_end_in_an_error_with_the_address_and_the_remedy() {
    use Answer::*;
    let cases: [(&[Answer], usize, &str); 6] = [
        (&[Status(404, None)], 1, "range of files"),
        (&[Status(403, None)], 1, "access"),
        (&[Status(400, None)], 1, "base URL"),
        (&[Status(503, Some(100_000)); 9], 4, "503, 4 times in a row: check the network"),
        (&[Short(10); 9], 4, "no whole gzip file"),
        (&[HangUp; 9], 4, "run the command again"),
    ];
    for (script, requests, words) in cases {
        let outcome = fetch(script);
        let error = outcome.result.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("/en/c4-train.00000-of-01024.json.gz"), "{error}");
        assert_eq!((outcome.requests, outcome.file), (requests, None), "{script:?}");
        assert!(outcome.slept <= Duration::from_secs(3 * 300));
    }
}

#[test]
fn a_later_run_continues_and_a_finished_file_is_not_fetched_again() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = fetch_into(folder.path(), content(), &[Answer::Cut(50_000), Answer::Status(404, None)]);
    assert!(outcome.result.is_err());
    let part = folder.path().join("c4-train.00000-of-01024.json.gz.part");
    assert_eq!(std::fs::metadata(&part).unwrap().len(), 50_000);
    // The server's file has the same tag, so the received bytes are kept and only the rest is sent.
    let outcome = fetch_into(folder.path(), content(), &[]);
    assert_eq!(outcome.requests, 1);
    assert!(outcome.file == Some(content()));
    let outcome = fetch_into(folder.path(), content(), &[Answer::Status(404, None)]);
    assert_eq!((outcome.result.unwrap().files[0].requests, outcome.requests), (0, 0));
}

#[test]
fn a_part_of_unknown_origin_is_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c4-train.00000-of-01024.json.gz.part"), "something else").unwrap();
    let outcome = fetch_into(folder.path(), content(), &[]);
    assert!(outcome.file == Some(content()));
}

#[test]
fn a_single_file_has_the_published_hash() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("models/file");
    // Of the text "abc", from FIPS 180-2.
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let fetch = |content: &str, script: &[Answer]| {
        let server = Server::start(content.into(), script);
        let config = FetchConfig { retries: 1, proxy: false, ..Default::default() };
        let url = format!("{}/file", server.url);
        let stop = AtomicBool::new(false);
        let result = fetch_file(&config, &url, hash, &file, &NoProgress, &stop, &|_| ());
        (result.map_err(|error| error.to_string()), server.requests())
    };
    let (result, requests) = fetch("abd", &[]);
    let error = result.unwrap_err();
    assert!(error.contains("has the SHA-256") && error.contains(hash), "{error}");
    assert_eq!((requests, file.exists()), (2, false));
    assert_eq!(fetch("abc", &[Answer::Status(503, None)]), (Ok(()), 2));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "abc");
    assert_eq!(fetch("abc", &[]), (Ok(()), 0), "it is there");
    std::fs::write(&file, "damaged").unwrap();
    assert_eq!(fetch("abc", &[]), (Ok(()), 1));
}

#[test]
fn cancelling_stops_in_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(content(), &[Answer::Status(503, Some(200))]);
    let config = FetchConfig { base_url: server.url.clone(), proxy: false, ..Default::default() };
    let cancel = AtomicBool::new(false);
    let sleep = |_: Duration| cancel.store(true, std::sync::atomic::Ordering::Relaxed);
    let outcome = fetch_c4(&config, folder.path(), &NoProgress, &cancel, &sleep);
    assert!(matches!(outcome, Err(ShardsError::Cancelled)));
    assert_eq!(server.requests(), 1);
}

#[test]
fn ranges_beyond_the_split_are_refused() {
    let check = |split, first, end| FetchConfig { split, first, end, ..Default::default() }.check();
    assert!(check(C4Split::Train, 0, 1024).is_ok());
    assert!(check(C4Split::Train, 0, 1025).is_err());
    assert!(check(C4Split::Train, 3, 3).is_err());
    assert!(check(C4Split::Validation, 0, 9).unwrap_err().to_string().contains("0..8"));
    assert_eq!(C4Split::Validation.file_name(7), "c4-validation.00007-of-00008.json.gz");
}
