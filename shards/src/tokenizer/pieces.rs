//! Cutting a text into pieces for separate encoding.

use super::added_texts::AddedTexts;

/// Most bytes of a piece. A BPE library's time and memory for one piece grow faster than its length.
const PIECE_BYTES: usize = 64 * 1024;

/// The pieces of a text, in order and without gaps.
///
/// A cut lies before a space that stands between a non-space and a letter: the patterns of GPT-2 and Llama 3 start a new
/// word there in any context, so the pieces give the same ids as the whole text. It may also lie before the text of an added
/// token, and never lies inside one. If the second half of the piece has no such place, the cut lies as near to the limit as
/// it can without dividing a character or the text of an added token. Only a run of overlapping texts of added tokens, such as
/// runs of spaces, is cut at the limit itself.
pub(super) fn pieces<'a>(text: &'a str, added: &'a AddedTexts) -> impl Iterator<Item = &'a str> {
    pieces_of(text, PIECE_BYTES, added)
}

fn pieces_of<'a>(text: &'a str, limit: usize, added: &'a AddedTexts) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, tail) = rest.split_at(piece_end(rest, limit, added));
        rest = tail;
        Some(piece)
    })
}

fn piece_end(text: &str, limit: usize, added: &AddedTexts) -> usize {
    if text.len() <= limit {
        return text.len();
    }
    let end = text.floor_char_boundary(limit);
    let half = end / 2;
    let bytes = text.as_bytes();
    let reaches = added.reaches(bytes, half..end + 1);
    let reach = |at: usize| reaches[at - half];
    let begins_word = |at: usize| {
        bytes[at] == b' '
            && text[..at].chars().next_back().is_some_and(|before| !before.is_whitespace())
            && text[at + 1..].chars().next().is_some_and(char::is_alphabetic)
    };
    let border = (half..end).rev().find(|&at| {
        let begins_token = added.at_front(&bytes[at..]) > 0;
        let touches_token = begins_token || reach(at) == at;
        at > 0
            && reach(at) <= at
            && (begins_token || begins_word(at))
            && !(touches_token && added.neighbours_matter())
    });
    let outside_tokens =
        || (half.max(1)..=end).rev().find(|&at| text.is_char_boundary(at) && reach(at) <= at);
    // A limit below the size of the first character still has to make progress.
    border.or_else(outside_tokens).unwrap_or(end).max(text.chars().next().map_or(1, char::len_utf8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_before_a_space_and_a_letter() {
        let none = AddedTexts::default();
        let pieces: Vec<&str> = pieces_of("one, two and three", 9, &none).collect();
        assert_eq!(pieces, ["one, two", " and", " three"]);
        let no_such_place: Vec<&str> = pieces_of("one  two\n  three", 9, &none).collect();
        assert_eq!(no_such_place, ["one  two\n", "  three"]);
    }

    proptest! {
        #[test]
        fn pieces_are_the_text_and_bounded(text in "[a-z é\u{10FFFF} \n]{0,60}", limit in 4usize..20) {
            let none = AddedTexts::default();
            let pieces: Vec<&str> = pieces_of(&text, limit, &none).collect();
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= limit));
            prop_assert_eq!(pieces.concat(), text);
        }
    }
}
