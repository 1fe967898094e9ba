//! Builds the clients of cloud stores.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::signer::Signer;
use object_store::{ClientOptions, Error, ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

/// Longest time for one request with its body, which has at most [`PART`](crate::transfer::PART) bytes. A line that
/// carries [`SLOTS`](crate::transfer::SLOTS) parts at 400 kB/s stays within it.
const REQUEST_LIMIT: Duration = Duration::from_secs(90);
/// Longest time to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Most repetitions of a request. The pauses before them grow at random, from 0.1 s on. Together they are a few seconds,
/// so a store that refuses connections is given up long before [`RETRY_LIMIT`].
const MOST_RETRIES: usize = 10;
/// Time from the first attempt of a request after which it is not repeated. Credentials are not renewed between
/// attempts, so this stays below five minutes.
const RETRY_LIMIT: Duration = Duration::from_secs(280);

/// The two faces of one client of a cloud store.
pub(crate) struct CloudClient {
    /// Reads and writes.
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Makes links.
    pub(crate) signer: Arc<dyn Signer>,
}

/// Gives the HTTP client the cryptography of this program; it panics without one.
pub(crate) fn set_cryptography() {
    // An error means that the process has one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client of the cloud store at `url`. It begins every name with the URL's path.
///
/// `settings` are `(key, value)` with the names of the providers' environment variables in lower case; keys of other
/// providers are ignored.
pub(crate) fn client(url: &Url, settings: &[(String, String)]) -> Result<CloudClient, Error> {
    set_cryptography();
    let (scheme, prefix) = ObjectStoreScheme::parse(url)?;
    let prefix = Path::parse(prefix)?;
    let limits = ClientOptions::new().with_timeout(REQUEST_LIMIT).with_connect_timeout(CONNECT_LIMIT);
    let retry =
        RetryConfig { max_retries: MOST_RETRIES, retry_timeout: RETRY_LIMIT, ..RetryConfig::default() };
    // The limits come first, so that a setting such as AWS_TIMEOUT replaces them.
    macro_rules! build {
        ($builder:ty) => {{
            let mut builder = <$builder>::new().with_client_options(limits).with_retry(retry);
            for (key, value) in settings {
                if let Ok(key) = key.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            let store = builder.with_url(url.as_str()).build()?;
            let client = Arc::new(PrefixStore::new(store, prefix));
            Ok(CloudClient { objects: client.clone(), signer: client })
        }};
    }
    match scheme {
        ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder),
        ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder),
        _ => Err(Error::NotSupported { source: format!("{}://", url.scheme()).into() }),
    }
}
