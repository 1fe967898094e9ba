//! The certificate authority of one run.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;

use crate::tls::{self, COORDINATOR_NAME};
use crate::{JoinToken, NetError};

/// Certificates hold from this long before they are issued, for machines whose clock is slow.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
const RUN_LINE: &str = "dipaco run: ";

/// Who may take part in a run: issues the coordinator's certificate and the workers' join tokens.
///
/// It holds a private key. Who has it can join and can pose as the coordinator.
pub struct RunAuthority {
    run_id: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// What the coordinator shows to workers: a certificate of the run for [`COORDINATOR_NAME`], and its private key.
pub struct ServerIdentity {
    pub(crate) run_id: String,
    pub(crate) authority: Vec<u8>,
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Secret of the run from which stateless resets are made: a coordinator that was killed and started again can
    /// tell its old peers that their connections are gone, and they need not wait for the idle timeout.
    pub(crate) reset_secret: [u8; 32],
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

impl RunAuthority {
    /// A new authority with a fresh key from the operating system's random source.
    ///
    /// # Errors
    /// [`NetError::Setting`] for a run id that is not 1 to 64 letters, digits, `-`, `_` or `.`.
    pub fn create(run_id: &str, now: SystemTime) -> Result<Self, NetError> {
        let mut params = authority_params(run_id)?;
        set_validity(&mut params, now, AUTHORITY_LIFETIME);
        let key = KeyPair::generate().map_err(failed("make the run's key"))?;
        let certificate = params.self_signed(&key).map_err(failed("make the run's certificate"))?;
        Ok(Self {
            run_id: run_id.to_owned(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        })
    }

    /// The run that this authority is for.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The authority as text, private key included: write it to a file that only its owner may read.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let encoded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &self.certificate);
        let lines: Vec<&str> = encoded
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).expect("base64 is ASCII"))
            .collect();
        format!(
            "{RUN_LINE}{}\n-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n{}",
            self.run_id,
            lines.join("\n"),
            self.issuer.key().serialize_pem()
        )
    }

    /// Reads what [`RunAuthority::to_pem`] wrote.
    ///
    /// # Errors
    /// [`NetError::Authority`] when a part is missing or damaged, or when key and certificate do not belong together.
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

    /// The identity of the run's coordinator.
    ///
    /// # Errors
    /// [`NetError::Identity`] when the certificate can't be made.
    pub fn server(&self, now: SystemTime, lifetime: Duration) -> Result<ServerIdentity, NetError> {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let (certificate, key) = self.leaf(COORDINATOR_NAME, usage, now, lifetime)?;
        Ok(ServerIdentity {
            run_id: self.run_id.clone(),
            authority: self.certificate.to_vec(),
            certificate,
            key,
            reset_secret: blake3::derive_key(
                "dipaco net stateless reset",
                self.issuer.key().serialized_der(),
            ),
        })
    }

    /// A token with which `name` may join as `role` for `lifetime`; `addresses` are `host:port` of the coordinator.
    ///
    /// Several processes may use the same token.
    ///
    /// # Errors
    /// [`NetError::Setting`] for a role or name that is not 1 to 40 lower-case letters, digits or `-`.
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
        let (certificate, key) = self.leaf(&subject, usage, now, lifetime)?;
        let expires = now + lifetime;
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
    ) -> Result<(Vec<u8>, Vec<u8>), NetError> {
        let mut params =
            CertificateParams::new(vec![name.to_owned()]).map_err(failed("name a certificate"))?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        set_validity(&mut params, now, lifetime);
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed("sign a certificate"))?;
        Ok((certificate.der().to_vec(), key.serialize_der()))
    }
}

/// The same for each run id, so that an authority can be read back without taking its certificate apart.
fn authority_params(run_id: &str) -> Result<CertificateParams, NetError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if run_id.is_empty() || run_id.len() > 64 || !run_id.chars().all(allowed) {
        return Err(NetError::Setting {
            what: "run id",
            value: run_id.to_owned(),
            reason: "write 1 to 64 letters, digits, `-`, `_` or `.`",
        });
    }
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "dipaco run");
    params.distinguished_name.push(DnType::CommonName, run_id);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, now: SystemTime, lifetime: Duration) {
    params.not_before = OffsetDateTime::from(now.checked_sub(CLOCK_SLACK).unwrap_or(now));
    params.not_after = OffsetDateTime::from(now + lifetime);
}

fn failed(what: &'static str) -> impl Fn(rcgen::Error) -> NetError {
    move |error| NetError::Identity { what, reason: error.to_string() }
}
