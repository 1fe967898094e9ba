//! Several models side by side.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Evaluation, PairedDifference};

/// Evaluations of several models on the same text. `Display` writes a table that compares all rows with the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Names and results of the models.
    pub rows: Vec<(String, Evaluation)>,
}

impl Comparison {
    /// Adds a model.
    pub fn push(&mut self, name: impl Into<String>, evaluation: Evaluation) {
        self.rows.push((name.into(), evaluation));
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            self.rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max("model".len());
        write!(
            f,
            "{:<width$} {:>12} {:>14} {:>12} {:>8} {:>10}",
            "model", "documents", "tokens", "perplexity", "change", "bits/byte"
        )?;
        let ranked = self.rows.iter().any(|(_, evaluation)| evaluation.ranking.is_some());
        if ranked {
            write!(f, " {:>8}", "ranking")?;
        }
        let base = self.rows.first().map(|(_, evaluation)| evaluation.perplexity);
        for (index, (name, row)) in self.rows.iter().enumerate() {
            let change = base
                .filter(|_| index > 0)
                .map(|base| format!("{:+.1} %", 100.0 * (row.perplexity / base - 1.0)));
            let bits = row.bits_per_byte.map_or_else(|| "-".into(), |bits| format!("{bits:.4}"));
            write!(
                f,
                "\n{name:<width$} {:>12} {:>14} {:>12.3} {:>8} {bits:>10}",
                row.documents,
                row.tokens_counted,
                row.perplexity,
                change.unwrap_or_default()
            )?;
            if ranked {
                let accuracy = row.ranking.map(|ranking| ranking.accuracy());
                let share = match accuracy {
                    None => "-".to_owned(),
                    Some(None) => "0 of 0".to_owned(),
                    Some(Some(share)) => format!("{:.1} %", 100.0 * share),
                };
                write!(f, " {share:>8}")?;
            }
        }
        self.write_differences(f)
    }
}

impl Comparison {
    /// The differences from the first row on the same documents, a line for each row that scored them.
    fn write_differences(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(((base, first), others)) = self.rows.split_first() else { return Ok(()) };
        let mut said = false;
        for (name, row) in others {
            let Some(PairedDifference { bits_per_byte, low, high }) = PairedDifference::between(row, first)
            else {
                continue;
            };
            if !said {
                write!(
                    f,
                    "\n\nbits per byte less those of {base}, with the 95 % interval over documents (Student's t):"
                )?;
                said = true;
            }
            write!(f, "\n  {name}: {bits_per_byte:+.4} ({low:+.4} to {high:+.4})")?;
        }
        Ok(())
    }
}
