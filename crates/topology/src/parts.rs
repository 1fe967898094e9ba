//! Parts of the transformer in words.

use std::ops::Range;

use crate::Part;

/// The parts of a level in the words of the configuration, with ranges of blocks.
#[must_use]
pub fn parts_in_words(parts: &[Part]) -> String {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for part in parts {
        let Part::Block(block) = *part else { continue };
        match ranges.last_mut() {
            Some(range) if range.end == block => range.end += 1,
            _ => ranges.push(block..block + 1),
        }
    }
    let blocks: Vec<String> = ranges
        .iter()
        .map(|range| if range.len() == 1 { range.start.to_string() } else { format!("{range:?}") })
        .collect();
    let mut words = Vec::new();
    if parts.contains(&Part::Embedding) {
        words.push("embedding".to_owned());
    }
    if !blocks.is_empty() {
        words.push(format!("blocks {}", blocks.join(", ")));
    }
    if parts.contains(&Part::Head) {
        words.push("head".to_owned());
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_in_the_configuration() {
        let parts =
            [Part::Embedding, Part::Block(0), Part::Block(5), Part::Block(6), Part::Block(11), Part::Head];
        assert_eq!(parts_in_words(&parts), "embedding, blocks 0, 5..7, 11, head");
        assert_eq!(parts_in_words(&[Part::Head]), "head");
    }
}
