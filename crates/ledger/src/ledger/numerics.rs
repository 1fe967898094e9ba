//! Devices whose results count together.

use std::collections::BTreeSet;
use std::fmt;

use dipaco_sync::Numerics;
use thiserror::Error;

use super::Ledger;

/// A device computes other bits than those whose results count.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "this device computes other bits ({found}) than those of this run ({expected}): use the same kind of processor for all \
     workers, force the same kernels with DIPACO_SIMD, or start the coordinator with train.numerics = \"any\"{}",
    SetBy(set_by.as_deref())
)]
pub struct OtherNumerics {
    /// Fingerprint of the device's arithmetic.
    pub found: String,
    /// Fingerprint of the run.
    pub expected: String,
    /// The token that set it; `None` if the configuration did, or an earlier version that did not note it.
    pub set_by: Option<String>,
}

/// What to do about a token that set the fingerprint.
struct SetBy<'a>(Option<&'a str>);

impl fmt::Display for SetBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(token) = self.0 else { return Ok(()) };
        write!(
            f,
            ". The token {token:?} set the fingerprint of the run: if its device is wrong, name the right fingerprint in \
             train.numerics, or revoke the token (dipaco token revoke), and the next contribution of another token sets it"
        )
    }
}

impl Ledger {
    /// Fingerprint of the first device whose outer gradient counts; `None` before that.
    #[must_use]
    pub fn numerics(&self) -> Option<&str> {
        self.objects.numerics.as_deref()
    }

    /// True if the configuration names the fingerprint: another device never may train.
    #[must_use]
    pub fn names_numerics(&self) -> bool {
        matches!(self.plan.numerics, Numerics::Only(_))
    }

    /// Checks that a device with this fingerprint may train.
    ///
    /// Not the first device that connects decides, but the first that contributes: any peer can connect. The fingerprint is in
    /// the manifest, so it holds for the whole run. A rollback to a round before that contribution undoes it, and so does the
    /// revocation of its token ([`Ledger::forget_numerics`]).
    ///
    /// # Errors
    /// When its results would have other bits than those of the run, and the run does not allow that.
    pub fn check_numerics(&self, found: &str) -> Result<(), OtherNumerics> {
        let (expected, set_by) = match &self.plan.numerics {
            Numerics::Any => (None, None),
            Numerics::Only(fingerprint) => (Some(fingerprint.as_str()), None),
            Numerics::Same => (self.numerics(), self.objects.numerics_token.clone()),
        };
        match expected {
            Some(expected) if expected != found => {
                Err(OtherNumerics { found: found.to_owned(), expected: expected.to_owned(), set_by })
            }
            _ => Ok(()),
        }
    }

    /// Forgets the fingerprint if one of these revoked tokens set it, and returns that token. The next outer gradient that
    /// counts sets it again.
    pub fn forget_numerics(&mut self, revoked: &BTreeSet<String>) -> Option<String> {
        let token = self.objects.numerics_token.take_if(|token| revoked.contains(token))?;
        self.objects.numerics = None;
        self.note_change(Vec::new());
        Some(token)
    }
}
