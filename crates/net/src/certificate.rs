//! The certificate of a server, renewed while the server runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::{Clock, NetError, RareWarning, ServerIdentity};

/// The operation in errors of a server's certificate.
pub(crate) const SERVER: &str = "use the coordinator's certificate";

/// The provider is explicit, because the process may have another provider for HTTP or none.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) fn key(der: &[u8]) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(der.to_vec()).into()
}

pub(crate) fn failed(what: &'static str) -> impl Fn(rustls::Error) -> NetError {
    move |error| NetError::Identity { what, reason: error.to_string() }
}

/// Certificate and key of a server.
fn certified(identity: &ServerIdentity) -> Result<CertifiedKey, NetError> {
    let chain = vec![identity.certificate.clone().into()];
    CertifiedKey::from_der(chain, key(&identity.key), &provider()).map_err(failed(SERVER))
}

/// Makes the next identity of a server, for the given time.
pub(crate) type IdentitySource = Arc<dyn Fn(SystemTime) -> Result<ServerIdentity, NetError> + Send + Sync>;

/// A clock, and the source of a server's next identities.
#[derive(Clone)]
pub(crate) struct Renewal {
    pub(crate) clock: Clock,
    pub(crate) source: IdentitySource,
}

/// Gives each handshake the server's certificate. When half of its life is over, the next handshake gets a new one, so
/// peers can connect however long the server runs. When the clock has been set back, too: peers refuse a certificate of the
/// future.
pub(crate) struct ServerCertificate {
    current: Mutex<Current>,
    renewal: Option<Renewal>,
    /// Each handshake asks for a certificate, also that of a stranger.
    warnings: RareWarning,
}

struct Current {
    certificate: Arc<CertifiedKey>,
    /// The time at which the server took this certificate.
    taken: SystemTime,
    /// The time from which on a new certificate is wanted.
    renew_at: SystemTime,
}

impl ServerCertificate {
    pub(crate) fn new(identity: &ServerIdentity) -> Result<Self, NetError> {
        let certificate = Arc::new(certified(identity)?);
        let renewal = identity.renewal.clone();
        let taken = renewal.as_ref().map_or(SystemTime::UNIX_EPOCH, |renewal| renewal.clock.now());
        let current = Mutex::new(Current { certificate, taken, renew_at: identity.renew_at });
        Ok(Self { current, renewal, warnings: RareWarning::default() })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn certificate(&self) -> Arc<CertifiedKey> {
        let mut current = self.current();
        if let Some(Renewal { clock, source }) = &self.renewal {
            let now = clock.now();
            if now >= current.renew_at || clock.set_back_since(current.taken) {
                let renewed = source(now).and_then(|next| Ok((Arc::new(certified(&next)?), next.renew_at)));
                match renewed {
                    Ok((certificate, renew_at)) => *current = Current { certificate, taken: now, renew_at },
                    Err(error) => {
                        if let Some(suppressed) = self.warnings.due(Instant::now()) {
                            tracing::warn!(%error, suppressed, "the server's certificate can't be renewed");
                        }
                    }
                }
            }
        }
        current.certificate.clone()
    }
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certificate())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tracing::{Event, Metadata, Subscriber, span, subscriber};

    use super::*;
    use crate::RunAuthority;

    /// Counts the lines of this crate's log.
    struct Lines(Arc<AtomicU64>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("dipaco_net")
        }

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_certificate_that_can_not_be_renewed_is_a_line_in_ten_seconds() {
        const DAY: Duration = Duration::from_secs(86_400);
        let begin = SystemTime::now();
        let identity = RunAuthority::create("run", begin).unwrap().helper(begin, DAY).unwrap();
        let late = Clock::from_fn(move || begin + DAY * 3 / 4);
        let identity = identity.renewed_by(late, |_| {
            Err(NetError::Identity { what: "renew", reason: "nobody has sent a new one".to_owned() })
        });
        let (certificate, lines) = (ServerCertificate::new(&identity).unwrap(), Arc::<AtomicU64>::default());
        let begun = Instant::now();
        subscriber::with_default(Lines(Arc::clone(&lines)), || {
            (0..1_000).for_each(|_| drop(certificate.certificate()));
        });
        let (found, took) = (lines.load(Ordering::Relaxed), begun.elapsed());
        // A machine that stands still for a while may give more than one.
        assert!((1..=1 + took.as_secs() / 10).contains(&found), "{found} lines in {took:?}");
    }
}
