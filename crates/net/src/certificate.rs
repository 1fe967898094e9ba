//! The certificate of a server, renewed while the server runs.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::{Clock, NetError, ServerIdentity, tls};

/// Makes the next identity of a server, for the given time.
pub(crate) type IdentitySource = Arc<dyn Fn(SystemTime) -> Result<ServerIdentity, NetError> + Send + Sync>;

/// A clock, and the source of a server's next identities.
#[derive(Clone)]
pub(crate) struct Renewal {
    pub(crate) clock: Clock,
    pub(crate) source: IdentitySource,
}

/// Gives each handshake the server's certificate. When half of its life is over, the next handshake gets a new one, so
/// peers can connect however long the server runs.
pub(crate) struct ServerCertificate {
    current: Mutex<Current>,
    renewal: Option<Renewal>,
}

struct Current {
    certificate: Arc<CertifiedKey>,
    /// The time from which on a new certificate is wanted.
    renew_at: SystemTime,
}

impl ServerCertificate {
    pub(crate) fn new(identity: &ServerIdentity) -> Result<Self, NetError> {
        let certificate = Arc::new(tls::certified(identity)?);
        let current = Mutex::new(Current { certificate, renew_at: identity.renew_at });
        Ok(Self { current, renewal: identity.renewal.clone() })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn certificate(&self) -> Arc<CertifiedKey> {
        let mut current = self.current();
        if let Some(Renewal { clock, source }) = &self.renewal {
            let now = clock.now();
            if now >= current.renew_at {
                let renewed =
                    source(now).and_then(|next| Ok((Arc::new(tls::certified(&next)?), next.renew_at)));
                match renewed {
                    Ok((certificate, renew_at)) => *current = Current { certificate, renew_at },
                    Err(error) => tracing::warn!(%error, "the server's certificate can't be renewed"),
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
