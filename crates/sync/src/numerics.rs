//! Devices that may train together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Beginnings of a fingerprint, by the kind of device.
const KINDS: [&str; 2] = ["cpu-", "cuda-"];
/// Number of hexadecimal digits at the end of a fingerprint.
const DIGITS: usize = 16;

/// Devices that may train together, by the fingerprints of their arithmetic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Numerics {
    /// Devices with the fingerprint of the first device whose outer gradient counts.
    #[default]
    Same,
    /// Devices with this fingerprint.
    Only(String),
    /// Every device.
    Any,
}

/// A text names no devices.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{found:?} names no devices: give \"same\", \"any\", or the fingerprint that `dipaco doctor` prints on a worker's machine"
)]
pub struct NoNumerics {
    found: String,
}

impl FromStr for Numerics {
    type Err = NoNumerics;

    fn from_str(text: &str) -> Result<Self, NoNumerics> {
        let digits = |digits: &str| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
        // A CPU's fingerprint also has its set of kernels, as in cpu-avx512-bf16-019f9291d31f02e0.
        let of_device = KINDS.iter().any(|kind| text.starts_with(kind));
        match text {
            "same" => Ok(Self::Same),
            "any" => Ok(Self::Any),
            _ if of_device && text.rsplit_once('-').is_some_and(|(_, end)| digits(end)) => {
                Ok(Self::Only(text.to_owned()))
            }
            _ => Err(NoNumerics { found: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for Numerics {
    type Error = NoNumerics;

    fn try_from(text: String) -> Result<Self, NoNumerics> {
        text.parse()
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "same",
            Self::Only(fingerprint) => fingerprint,
            Self::Any => "any",
        })
    }
}

impl From<Numerics> for String {
    fn from(numerics: Numerics) -> Self {
        numerics.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_a_misspelt_one_is_none() {
        for text in ["same", "any", "cpu-avx512-bf16-019f9291d31f02e0", "cuda-019f9291d31f02e0"] {
            let numerics: Numerics = text.parse().unwrap();
            assert_eq!(numerics.to_string(), text);
        }
        for text in [
            "",
            "sane",
            "Any",
            "0123456789abcdef",
            "-0123456789abcdef",
            "cpu-0123",
            "cpu-0123456789abcdeg",
            "cuda",
            "cpu0123456789abcdef",
            "avx512-bf16-0123456789abcdef",
        ] {
            assert!(text.parse::<Numerics>().is_err(), "{text}");
        }
    }
}
