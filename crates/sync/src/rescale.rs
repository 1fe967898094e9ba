//! Scaling of the mean of outer gradients (arXiv:2403.10616 §2.7).

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Compensation for the norm that a mean of different outer gradients loses.
///
/// In a configuration it is a number, the exponent, or one of three names: `"none"` is 0, `"sqrt-paths"` is 0.5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rescale {
    /// Multiply by the number of paths to the power of this exponent. With 0.5 the factor makes up for the norm that a
    /// mean of uncorrelated gradients loses.
    Paths(f64),
    /// Average directions and norms separately, tensor by tensor (radial-directional averaging). The result has the
    /// direction of the mean direction and the mean norm. Its norm depends neither on the number of paths nor on their
    /// similarity. Token embeddings take the plain mean.
    Rda,
}

/// The square root of the number of paths, as in the paper.
impl Default for Rescale {
    fn default() -> Self {
        Self::SQRT_PATHS
    }
}

impl Rescale {
    /// No compensation.
    pub const NONE: Self = Self::Paths(0.0);
    /// The square root of the number of paths.
    pub const SQRT_PATHS: Self = Self::Paths(0.5);

    /// Names in a configuration, and their values.
    const NAMES: [(&str, Self); 3] =
        [("none", Self::NONE), ("sqrt-paths", Self::SQRT_PATHS), ("rda", Self::Rda)];

    /// Factor on the weighted mean over this many paths. The factor of RDA follows from the gradients.
    #[must_use]
    pub fn factor(self, paths: usize) -> f32 {
        match self {
            Self::Paths(exponent) => (paths as f64).powf(exponent) as f32,
            Self::Rda => 1.0,
        }
    }

    /// True if the exponent is a number from -1 to 1.
    #[must_use]
    pub fn in_range(self) -> bool {
        match self {
            Self::Paths(exponent) => (-1.0..=1.0).contains(&exponent),
            Self::Rda => true,
        }
    }
}

impl Serialize for Rescale {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = Self::NAMES.iter().find(|(_, rescale)| rescale == self);
        match (name, self) {
            (Some((name, _)), _) => serializer.serialize_str(name),
            (None, Self::Paths(exponent)) => serializer.serialize_f64(*exponent),
            (None, Self::Rda) => serializer.serialize_str("rda"),
        }
    }
}

impl<'de> Deserialize<'de> for Rescale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Rescale;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an exponent, \"none\", \"sqrt-paths\" or \"rda\"")
            }
            fn visit_f64<E: serde::de::Error>(self, exponent: f64) -> Result<Rescale, E> {
                Ok(Rescale::Paths(exponent))
            }
            fn visit_u64<E: serde::de::Error>(self, exponent: u64) -> Result<Rescale, E> {
                Ok(Rescale::Paths(exponent as f64))
            }
            fn visit_i64<E: serde::de::Error>(self, exponent: i64) -> Result<Rescale, E> {
                Ok(Rescale::Paths(exponent as f64))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rescale, E> {
                let named = Rescale::NAMES.into_iter().find(|(name, _)| *name == text);
                named
                    .map(|(_, rescale)| rescale)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// arXiv:2403.10616 §2.7: 16 paths through a module of a 16 × 16 grid make a factor of 4, a path-specific one 1.
    #[test]
    fn rescaling_is_the_square_root_of_the_paths() {
        assert_eq!(Rescale::SQRT_PATHS.factor(16).to_bits(), 4f32.to_bits());
        assert_eq!(Rescale::SQRT_PATHS.factor(1).to_bits(), 1f32.to_bits());
        assert_eq!(Rescale::NONE.factor(16).to_bits(), 1f32.to_bits());
        assert_eq!(Rescale::Paths(0.25).factor(16).to_bits(), 2f32.to_bits());
        assert_eq!(Rescale::Paths(-1.0).factor(16).to_bits(), 0.0625f32.to_bits());
        assert_eq!(Rescale::Rda.factor(16).to_bits(), 1f32.to_bits());
    }

    /// The names had rules of their own before there was an exponent. Their factors keep their bits.
    #[test]
    fn the_named_exponents_have_the_bits_of_their_own_rules() {
        for paths in 1..=1usize << 16 {
            assert_eq!(
                Rescale::SQRT_PATHS.factor(paths).to_bits(),
                (paths as f32).sqrt().to_bits(),
                "{paths}"
            );
            assert_eq!(Rescale::NONE.factor(paths).to_bits(), 1f32.to_bits());
        }
    }

    #[test]
    fn a_name_and_its_exponent_are_the_same_value() {
        let read = |text: &str| serde_json::from_str::<Rescale>(text);
        assert_eq!(read("\"none\"").unwrap(), read("0").unwrap());
        assert_eq!(read("\"sqrt-paths\"").unwrap(), read("0.5").unwrap());
        assert_eq!(read("-0.5").unwrap(), Rescale::Paths(-0.5));
        assert_eq!(read("\"rda\"").unwrap(), Rescale::Rda);
        assert!(read("\"sqrt\"").is_err() && read("true").is_err());
        for rescale in [Rescale::NONE, Rescale::SQRT_PATHS, Rescale::Rda, Rescale::Paths(1.0 / 3.0)] {
            assert_eq!(read(&serde_json::to_string(&rescale).unwrap()).unwrap(), rescale);
        }
        assert_eq!(serde_json::to_string(&read("0.5").unwrap()).unwrap(), "\"sqrt-paths\"");
    }
}
