//! TLS of both ends: only version 1.3, only certificates of the run's authority.

use std::sync::Arc;
use std::time::SystemTime;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::certificate::{SERVER, ServerCertificate, failed, key, provider};
use crate::{Clock, JoinToken, NetError, ServerIdentity};

/// Protocol and version for ALPN. Ends with different versions do not connect.
pub const PROTOCOL: &str = "dipaco/15";

/// Name in the coordinator's certificate. Workers verify this name and not the address, which may change.
pub const COORDINATOR_NAME: &str = "dipaco-coordinator";

/// Name in the certificate of a helper: a process that serves workers in the coordinator's place and can't pose as the
/// coordinator.
pub const HELPER_NAME: &str = "dipaco-helper";

const PEER_DOMAIN: &str = ".dipaco";

pub(crate) fn server_config(identity: &ServerIdentity) -> Result<QuicServerConfig, NetError> {
    let what = SERVER;
    let clock = identity.renewal.as_ref().map_or_else(Clock::system, |renewal| renewal.clock.clone());
    let roots = Arc::new(roots(&identity.authority)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(|error| NetError::Identity { what, reason: error.to_string() })?;
    let mut config = rustls::ServerConfig::builder_with_details(provider(), Arc::new(clock))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed(what))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(ServerCertificate::new(identity)?));
    config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
    // A resumed session would outlive the certificate that opened it.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    QuicServerConfig::try_from(config).map_err(|error| NetError::Identity { what, reason: error.to_string() })
}

/// The TLS settings of a client that connects at `now`.
pub(crate) fn client_config(token: &JoinToken, now: SystemTime) -> Result<QuicClientConfig, NetError> {
    let what = "use the token's certificate";
    let clock = Arc::new(Clock::from_fn(move || now));
    let mut config = rustls::ClientConfig::builder_with_details(provider(), clock)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed(what))?
        .with_root_certificates(roots(&token.authority)?)
        .with_client_auth_cert(vec![token.certificate.clone().into()], key(&token.key))
        .map_err(failed(what))?;
    config.alpn_protocols = vec![PROTOCOL.as_bytes().to_vec()];
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config).map_err(|error| NetError::Identity { what, reason: error.to_string() })
}

fn roots(authority: &[u8]) -> Result<RootCertStore, NetError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_slice(authority)).map_err(failed("use the run's certificate"))?;
    Ok(roots)
}

/// Name in a worker's certificate: `<name>.<role>.dipaco`.
pub(crate) fn peer_name(role: &str, name: &str) -> Result<String, NetError> {
    for (what, value) in [("role", role), ("name", name)] {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let hyphens_inside = !value.starts_with('-') && !value.ends_with('-');
        if value.is_empty() || value.len() > 40 || !value.chars().all(allowed) || !hyphens_inside {
            let reason = "write 1 to 40 lower-case letters, digits or (inside) `-`";
            return Err(NetError::Setting { what, value: value.to_owned(), reason });
        }
    }
    let full = format!("{name}.{role}{PEER_DOMAIN}");
    Ok(full)
}

/// Checks the name of a token.
///
/// # Errors
/// [`NetError::Setting`] unless it has 1 to 40 lower-case letters, digits or (inside) `-`.
pub fn check_token_name(name: &str) -> Result<(), NetError> {
    peer_name("worker", name).map(drop)
}

/// Role and name in a verified certificate of a peer.
pub(crate) fn role_and_name(certificate: &CertificateDer<'_>) -> Option<(String, String)> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let subject = parsed.valid_dns_names().find_map(|name| name.strip_suffix(PEER_DOMAIN))?;
    let (name, role) = subject.split_once('.')?;
    Some((role.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::RunAuthority;

    #[test]
    fn the_server_learns_role_and_name_from_the_certificate() {
        let now = SystemTime::now();
        let authority = RunAuthority::create("run", now).unwrap();
        let token = authority.issue("worker", "gpu-3", vec![], now, Duration::from_secs(60)).unwrap();
        let certificate = token.certificate.as_slice().into();
        assert_eq!(role_and_name(&certificate), Some(("worker".to_owned(), "gpu-3".to_owned())));
        let authority_itself = token.authority.as_slice().into();
        assert_eq!(role_and_name(&authority_itself), None);
    }

    #[test]
    fn names_that_a_certificate_can_not_hold_are_refused() {
        for name in ["", "Upper", "a.b", "-a", "a-", "ä", &"x".repeat(41)] {
            assert!(
                matches!(peer_name("worker", name), Err(NetError::Setting { what: "name", .. })),
                "{name}"
            );
        }
    }
}
