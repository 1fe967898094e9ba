//! Cutting a text into pieces for separate encoding.

/// Most bytes of a piece. A BPE library's time and memory for one piece grow faster than its length.
const PIECE_BYTES: usize = 64 * 1024;

/// The pieces of a text, in order and without gaps.
///
/// A cut lies before a space that stands between a non-space and a letter: the patterns of GPT-2 and Llama 3 start a new
/// word there in any context, so the pieces give the same ids as the whole text. If the second half of the piece has no
/// such place, the cut lies at the limit, between two characters.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_of(text, PIECE_BYTES)
}

fn pieces_of(text: &str, limit: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(piece_end(rest, limit));
        rest = tail;
        Some(piece)
    })
}

fn piece_end(text: &str, limit: usize) -> usize {
    if text.len() <= limit {
        return text.len();
    }
    let end = text.floor_char_boundary(limit);
    let bytes = text.as_bytes();
    let border = (end / 2..end).rev().find(|&at| {
        at > 0
            && bytes[at] == b' '
            && text[..at].chars().next_back().is_some_and(|before| !before.is_whitespace())
            && text[at + 1..].chars().next().is_some_and(char::is_alphabetic)
    });
    // A limit below the size of the first character still has to make progress.
    border.unwrap_or(end).max(text.chars().next().map_or(1, char::len_utf8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_before_a_space_and_a_letter() {
        let pieces: Vec<&str> = pieces_of("one, two and three", 9).collect();
        assert_eq!(pieces, ["one, two", " and", " three"]);
        let no_such_place: Vec<&str> = pieces_of("one  two\n  three", 9).collect();
        assert_eq!(no_such_place, ["one  two\n", "  three"]);
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_and_bounded(text in "[a-z é\u{10FFFF} \n]{0,60}", limit in 4usize..20) {
            let pieces: Vec<&str> = pieces_of(&text, limit).collect();
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= limit));
            prop_assert_eq!(pieces.concat(), text);
        }
    }
}
