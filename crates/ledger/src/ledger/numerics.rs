//! Devices whose results count together.

use dipaco_sync::Numerics;
use thiserror::Error;

use super::Ledger;

/// A device computes other bits than those whose results count.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "this device computes other bits ({found}) than those of this run ({expected}): use the same kind of processor for all \
     workers, force the same kernels with DIPACO_SIMD, or start the coordinator with train.numerics = \"any\""
)]
pub struct OtherNumerics {
    /// Fingerprint of the device's arithmetic.
    pub found: String,
    /// Fingerprint of the run.
    pub expected: String,
}

impl Ledger {
    /// Fingerprint of the first device whose outer gradient counts; `None` before that.
    #[must_use]
    pub fn numerics(&self) -> Option<&str> {
        self.objects.numerics.as_deref()
    }

    /// Checks that a device with this fingerprint may train.
    ///
    /// Not the first device that connects decides, but the first that contributes: any peer can connect. The fingerprint is in
    /// the manifest, so it holds for the whole run, and a rollback to a round before that contribution undoes it.
    ///
    /// # Errors
    /// When its results would have other bits than those of the run, and the run does not allow that.
    pub fn check_numerics(&self, found: &str) -> Result<(), OtherNumerics> {
        let expected = match &self.plan.numerics {
            Numerics::Any => None,
            Numerics::Only(fingerprint) => Some(fingerprint.as_str()),
            Numerics::Same => self.numerics(),
        };
        match expected {
            Some(expected) if expected != found => {
                Err(OtherNumerics { found: found.to_owned(), expected: expected.to_owned() })
            }
            _ => Ok(()),
        }
    }
}
