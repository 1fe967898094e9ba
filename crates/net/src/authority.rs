//! The certificate authority of one run.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::certificate::Renewal;
use crate::clock::CLOCK_SLACK;
use crate::tls::{self, COORDINATOR_NAME, HELPER_NAME};
use crate::{Clock, JoinToken, NetError};

/// Lifetime of an authority, and so the longest lifetime of its certificates.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
const RUN_LINE: &str = "dipaco run: ";

/// The certificate authority of a run. It issues the coordinator's certificate and the workers' join tokens.
///
/// It contains a private key. Anyone with this key can join the run and pose as the coordinator.
pub struct RunAuthority {
    run_id: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A server's identity: a certificate of the run for [`COORDINATOR_NAME`] or [`HELPER_NAME`], and its private key.
#[derive(Clone, Serialize, Deserialize)]
pub struct ServerIdentity {
    pub(crate) run_id: String,
    pub(crate) authority: Vec<u8>,
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Secret of the run for stateless resets. With it a restarted coordinator tells its old peers at once that their
    /// connections are gone, before their idle timeout.
    pub(crate) reset_secret: [u8; 32],
    /// The time at which half of the certificate's life is over.
    pub(crate) renew_at: SystemTime,
    #[serde(skip)]
    pub(crate) renewal: Option<Renewal>,
}

/// A certificate signed by the authority, with its private key (both DER).
struct Leaf {
    certificate: Vec<u8>,
    key: Vec<u8>,
    expires: SystemTime,
}

impl std::fmt::Debug for RunAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunAuthority").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerIdentity").field("run_id", &self.run_id).finish_non_exhaustive()
    }
}

impl ServerIdentity {
    /// The same identity for a server that outlives its certificate: when half of the certificate's life is over by
    /// `clock`, `source` makes the next identity.
    #[must_use]
    pub fn renewed_by(
        self,
        clock: Clock,
        source: impl Fn(SystemTime) -> Result<Self, NetError> + Send + Sync + 'static,
    ) -> Self {
        Self { renewal: Some(Renewal { clock, source: std::sync::Arc::new(source) }), ..self }
    }
}

impl RunAuthority {
    /// True for a text that can be the identity of a run: 1 to 64 letters, digits, `-`, `_` or `.`, not beginning with a dot. So
    /// it is also the name of a folder, and leads to no other one.
    #[must_use]
    pub fn is_run_id(text: &str) -> bool {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (1..=64).contains(&text.len()) && !text.starts_with('.') && text.chars().all(allowed)
    }

    /// Creates an authority with a new key from the operating system's random source.
    ///
    /// # Errors
    /// [`NetError::Setting`] if the run id is none, see [`RunAuthority::is_run_id`].
    pub fn create(run_id: &str, now: SystemTime) -> Result<Self, NetError> {
        let mut params = authority_params(run_id)?;
        set_validity(&mut params, now, AUTHORITY_LIFETIME)?;
        let key = KeyPair::generate().map_err(failed("make the run's key"))?;
        let certificate = params.self_signed(&key).map_err(failed("make the run's certificate"))?;
        Ok(Self {
            run_id: run_id.to_owned(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Identity of the run.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Returns the authority as text with its private key. Write it only to a file that nobody but its owner can read.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &self.certificate);
        let lines: Vec<_> = encoded.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!(
            "{RUN_LINE}{}\n-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n{}",
            self.run_id,
            lines.join("\n"),
            self.issuer.key().serialize_pem()
        )
    }

    /// Reads the text of [`RunAuthority::to_pem`].
    ///
    /// # Errors
    /// [`NetError::Authority`] if a part is missing or damaged, or if key and certificate do not belong together.
    pub fn from_pem(text: &str) -> Result<Self, NetError> {
        let wrong = |reason: &str| NetError::Authority { reason: reason.to_owned() };
        let run_id = text.lines().find_map(|line| line.strip_prefix(RUN_LINE));
        let run_id = run_id.ok_or_else(|| wrong("its first line does not name the run"))?.trim().to_owned();
        let params = authority_params(&run_id)?;
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).map_err(|error| {
            NetError::Authority { reason: format!("its certificate can't be read ({error})") }
        })?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| NetError::Authority { reason: format!("its key can't be read ({error})") })?;
        let key = KeyPair::try_from(&key)
            .map_err(|error| NetError::Authority { reason: format!("its key is damaged ({error})") })?;
        let parsed = webpki::EndEntityCert::try_from(&certificate).map_err(|error| NetError::Authority {
            reason: format!("its certificate is damaged ({error})"),
        })?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(wrong("its key and its certificate do not belong together"));
        }
        Ok(Self { run_id, certificate, issuer: Issuer::new(params, key) })
    }

    /// Issues the identity of the run's coordinator.
    ///
    /// # Errors
    /// [`NetError::Setting`] for a lifetime over ten years, [`NetError::Identity`] if the signature fails.
    pub fn server(&self, now: SystemTime, lifetime: Duration) -> Result<ServerIdentity, NetError> {
        let identity = self.server_as(COORDINATOR_NAME, now, lifetime)?;
        // The same secret after a restart of the coordinator.
        let secret = blake3::derive_key("dipaco net stateless reset", self.issuer.key().serialized_der());
        Ok(ServerIdentity { reset_secret: secret, ..identity })
    }

    /// Issues the identity of a helper, which serves workers in the coordinator's place. Nobody can pose as the
    /// coordinator with it.
    ///
    /// # Errors
    /// As [`RunAuthority::server`].
    pub fn helper(&self, now: SystemTime, lifetime: Duration) -> Result<ServerIdentity, NetError> {
        self.server_as(HELPER_NAME, now, lifetime)
    }

    fn server_as(&self, name: &str, now: SystemTime, lifetime: Duration) -> Result<ServerIdentity, NetError> {
        let Leaf { certificate, key, .. } =
            self.leaf(name, ExtendedKeyUsagePurpose::ServerAuth, now, lifetime)?;
        Ok(ServerIdentity {
            run_id: self.run_id.clone(),
            authority: self.certificate.to_vec(),
            certificate,
            reset_secret: blake3::derive_key("dipaco net stateless reset of a helper", &key),
            key,
            renew_at: now + lifetime / 2,
            renewal: None,
        })
    }

    /// Issues a token: `name` may join as `role` for `lifetime`. `addresses` are `host:port` of the coordinator.
    ///
    /// Several processes may use the same token.
    ///
    /// # Errors
    /// [`NetError::Setting`] unless role and name have 1 to 40 lower-case letters, digits or `-`, and for a lifetime
    /// over ten years.
    pub fn issue(
        &self,
        role: &str,
        name: &str,
        addresses: Vec<String>,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<JoinToken, NetError> {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        let subject = tls::peer_name(role, name)?;
        let Leaf { certificate, key, expires } = self.leaf(&subject, usage, now, lifetime)?;
        Ok(JoinToken {
            run_id: self.run_id.clone(),
            addresses,
            authority: self.certificate.to_vec(),
            certificate,
            key,
            expires: expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
        })
    }

    fn leaf(
        &self,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<Leaf, NetError> {
        let mut params =
            CertificateParams::new(vec![name.to_owned()]).map_err(failed("name a certificate"))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let expires = set_validity(&mut params, now, lifetime)?;
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed("sign a certificate"))?;
        Ok(Leaf { certificate: certificate.der().to_vec(), key: key.serialize_der(), expires })
    }
}

/// Parameters of an authority's certificate. They depend only on the run id, so [`RunAuthority::from_pem`] need not
/// parse the certificate for them.
fn authority_params(run_id: &str) -> Result<CertificateParams, NetError> {
    if !RunAuthority::is_run_id(run_id) {
        return Err(NetError::Setting {
            what: "run id",
            value: run_id.to_owned(),
            reason: "write 1 to 64 letters, digits, `-`, `_` or `.`, not beginning with a dot",
        });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "dipaco run");
    params.distinguished_name.push(DnType::CommonName, run_id);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// Sets the validity of a certificate, and returns its end.
fn set_validity(
    params: &mut CertificateParams,
    now: SystemTime,
    lifetime: Duration,
) -> Result<SystemTime, NetError> {
    let wrong = |what, value: String, reason| NetError::Setting { what, value, reason };
    if lifetime > AUTHORITY_LIFETIME {
        let value = format!("{} s", lifetime.as_secs());
        return Err(wrong("lifetime", value, "the run's authority is valid for ten years"));
    }
    // Calendar dates end with the year 9999.
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if since_1970 > Duration::from_secs(200_000_000_000) {
        let value = format!("{} s after 1970", since_1970.as_secs());
        return Err(wrong("time", value, "check this machine's clock"));
    }
    let expires = SystemTime::UNIX_EPOCH + since_1970 + lifetime;
    let starts = SystemTime::UNIX_EPOCH + since_1970.saturating_sub(CLOCK_SLACK);
    params.not_before = OffsetDateTime::from(starts);
    params.not_after = OffsetDateTime::from(expires);
    Ok(expires)
}

fn failed(what: &'static str) -> impl Fn(rcgen::Error) -> NetError {
    move |error| NetError::Identity { what, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_a_run_names_a_folder_and_leads_to_no_other_one() {
        let longest = "x".repeat(64);
        for id in ["a", "c4-16x16", "My_run.2", "-a", &longest] {
            assert!(RunAuthority::is_run_id(id), "{id}");
        }
        for id in
            ["", ".", "..", ".ssh", "/etc", "a/../../b", "a\\b", "a b", "a\n", "ä", &format!("{longest}x")]
        {
            assert!(!RunAuthority::is_run_id(id), "{id}");
            let refused = RunAuthority::create(id, SystemTime::UNIX_EPOCH);
            assert!(matches!(refused, Err(NetError::Setting { what: "run id", .. })), "{id}");
        }
    }
}
