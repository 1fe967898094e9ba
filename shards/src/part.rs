//! Parts of a job that several machines share.

use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ShardsError;

/// Largest number of parts of a job.
const MOST: u32 = 1 << 20;

/// Part `index` of `count`, written `2/8`; parts count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkPart {
    index: u32,
    count: u32,
}

impl WorkPart {
    /// The only part of an undivided job.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// Part `index` of `count`.
    ///
    /// # Errors
    /// The index is not from 1 to `count`, or there are more than a million parts.
    pub fn new(index: u32, count: u32) -> Result<Self, ShardsError> {
        if (1..=count).contains(&index) && count <= MOST {
            return Ok(Self { index, count });
        }
        Err(Self::refuse(&format!("{index}/{count}")))
    }

    /// Its number, from 1.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// Number of parts.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// All parts of the same job.
    pub fn all(self) -> impl Iterator<Item = Self> {
        (1..=self.count).map(move |index| Self { index, count: self.count })
    }

    /// This part's range of `total` items. The ranges of the parts follow each other and differ in length by at most
    /// one.
    #[must_use]
    pub fn range(self, total: u64) -> Range<u64> {
        let border = |parts: u32| (u128::from(total) * u128::from(parts) / u128::from(self.count)) as u64;
        border(self.index - 1)..border(self.index)
    }

    /// True if item `number`, from 0, belongs to this part when items are dealt to the parts in turn.
    #[must_use]
    pub fn deals(self, number: usize) -> bool {
        number % self.count as usize == self.index as usize - 1
    }

    /// The part of `count` parts that item `number` is dealt to.
    #[must_use]
    pub(crate) fn dealt(number: usize, count: u32) -> Self {
        Self { index: (number % count.max(1) as usize) as u32 + 1, count: count.max(1) }
    }

    fn refuse(value: &str) -> ShardsError {
        ShardsError::Value {
            key: "--part",
            value: value.to_owned(),
            reason: "give the part's number, from 1, and the number of parts, such as 2/8",
        }
    }
}

impl Default for WorkPart {
    fn default() -> Self {
        Self::WHOLE
    }
}

impl std::fmt::Display for WorkPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for WorkPart {
    type Err = ShardsError;

    fn from_str(text: &str) -> Result<Self, ShardsError> {
        let numbers = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.trim().parse().ok()?, count.trim().parse().ok()?)));
        match numbers {
            Some((index, count)) => Self::new(index, count),
            None => Err(Self::refuse(text)),
        }
    }
}

impl TryFrom<String> for WorkPart {
    type Error = ShardsError;

    fn try_from(text: String) -> Result<Self, ShardsError> {
        text.parse()
    }
}

impl From<WorkPart> for String {
    fn from(part: WorkPart) -> Self {
        part.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_is_written_as_a_fraction() {
        let part: WorkPart = "2/8".parse().unwrap();
        assert_eq!((part.index(), part.count(), part.to_string()), (2, 8, "2/8".to_owned()));
        for wrong in ["0/8", "9/8", "8", "a/b", "1/0", "-1/2", "1/2/3", "1/4294967295"] {
            let message = wrong.parse::<WorkPart>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("--part = {wrong}")), "{message}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_everything_once(total in 0u64..10_000, count in 1u32..50) {
            let parts: Vec<WorkPart> = WorkPart::new(1, count).unwrap().all().collect();
            let mut next = 0;
            for part in &parts {
                let range = part.range(total);
                prop_assert_eq!(range.start, next);
                prop_assert!(range.end - range.start <= total / u64::from(count) + 1);
                next = range.end;
            }
            prop_assert_eq!(next, total);
            for number in 0..60 {
                let dealt: Vec<WorkPart> = parts.iter().copied().filter(|part| part.deals(number)).collect();
                prop_assert_eq!(dealt, vec![WorkPart::dealt(number, count)]);
            }
        }
    }
}
