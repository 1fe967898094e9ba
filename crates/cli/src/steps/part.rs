//! A part of a job that several machines share. Goes away for `dipaco_shards::Part`.

use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    index: usize,
    count: usize,
}

impl Part {
    pub(crate) const WHOLE: Self = Self { index: 1, count: 1 };

    pub(crate) fn deals(self, number: usize) -> bool {
        number % self.count == self.index - 1
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err("give the part's number, from 1, and the number of parts, as in 2/8".to_owned()),
        }
    }
}
