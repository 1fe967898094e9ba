//! Azure Blob Storage as a server: Azurite.

use std::process::Command;

use crate::http;
use crate::object_store::BUCKET;
use crate::process::{Process, clean};

/// The account that every Azurite has, and its key, which its documentation publishes.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// A signature of that key for making containers until 2099, by the rules of an account SAS: an independent
/// implementation (Python's hmac) has made it.
const MAY_MAKE_CONTAINERS: &str = "sv=2021-06-08&ss=b&srt=c&sp=c&se=2099-01-01T00%3A00%3A00Z&spr=https%2Chttp\
                                   &sig=Avq00El0Nn%2B1a5E1XN4lUyUR7eDB0%2FCidEUMeIRfMWQ%3D";

/// A server of Azurite with an empty container. It checks signatures, and forgets everything when it is dropped.
pub struct Azurite {
    _process: Process,
    /// Its address, as `127.0.0.1:PORT`.
    pub address: String,
}

impl Azurite {
    /// Starts a server with an empty container of the name [`BUCKET`].
    ///
    /// # Panics
    /// When `AZURITE` does not name its program, or when it does not start.
    #[must_use]
    pub fn start() -> Self {
        let program =
            std::env::var_os("AZURITE").expect("AZURITE names no program: run scripts/check-azure.sh");
        // It says its address on standard output.
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"exec "$0" "$@" >&2"#]).arg(program);
        let options =
            ["--disableTelemetry", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", "0"];
        let mut process = Process::start(clean(shell, options));
        let line = process.line_with("successfully listens on http://");
        let address = line.split("http://").nth(1).unwrap().trim().to_owned();
        let path = format!("/{ACCOUNT}/{BUCKET}?restype=container&{MAY_MAKE_CONTAINERS}");
        let made = http::exchange(&address, &http::request("PUT", &path, b""));
        assert_eq!(made.status, 201, "{made:?}");
        Self { _process: process, address }
    }

    /// The environment with which a process reaches the server.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("AZURE_STORAGE_ENDPOINT", format!("http://{}/{ACCOUNT}", self.address).as_str()),
            ("AZURE_ALLOW_HTTP", "true"),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }
}
