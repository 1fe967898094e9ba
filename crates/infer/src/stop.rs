//! Texts that end a continuation.

/// Result of a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No stop text yet. The text can't be part of a stop text.
    Continue(String),
    /// A stop text is complete.
    Reached {
        /// Text before the stop text that was held back.
        before: String,
        /// The stop text.
        stop: String,
    },
}

/// Finds stop texts in a stream of pieces. Holds back text that could be the start of a stop text.
///
/// The stop text that ends first wins; of several with the same end, the longest. The result does not depend on how the
/// text is cut into pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    /// Number of bytes of the held text in which no stop text may end.
    passed: usize,
}

impl StopMatcher {
    /// A matcher for these texts. Empty texts are ignored.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), passed: 0 }
    }

    /// Takes the next piece of text.
    pub fn push(&mut self, text: &str) -> Stop {
        self.held.push_str(text);
        let ends = |stop: &String| {
            // A stop text from here on ends after the passed text.
            let from = (self.passed + 1).saturating_sub(stop.len());
            let from = self.held.ceil_char_boundary(from);
            self.held[from..].find(stop.as_str()).map(|start| (from + start + stop.len(), from + start))
        };
        let first = self
            .stops
            .iter()
            .filter_map(|stop| ends(stop).map(|found| (found, stop)))
            .min_by_key(|(f, _)| *f);
        if let Some(((_, start), stop)) = first {
            let stop = stop.clone();
            let mut before = std::mem::take(&mut self.held);
            before.truncate(start);
            return Stop::Reached { before, stop };
        }
        Stop::Continue(self.give())
    }

    /// Takes a piece of text in which no stop text ends. One that begins there may end in a later piece. Returns the text
    /// that can't be part of a stop text.
    pub fn pass(&mut self, text: &str) -> String {
        self.held.push_str(text);
        self.passed = self.held.len();
        self.give()
    }

    /// Takes the text that can't be part of a stop text out of the held text.
    fn give(&mut self) -> String {
        let safe = self.held.len() - self.possible_start();
        let rest = self.held.split_off(safe);
        self.passed = self.passed.saturating_sub(safe);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the stream and returns the text held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Number of bytes at the end of the held text that could be the start of a stop text.
    fn possible_start(&self) -> usize {
        let longest = |stop: &String| {
            // The longest first: it mostly fits, because the held text was the start of a stop text.
            let mut lengths = (1..stop.len().min(self.held.len() + 1)).rev();
            lengths.find(|&at| stop.is_char_boundary(at) && self.held.ends_with(&stop[..at])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Stop::Continue(more) => text.push_str(&more),
                Stop::Reached { before, stop } => return (text + &before, Some(stop)),
            }
        }
        (text + &matcher.finish(), None)
    }

    #[test]
    fn a_stop_text_that_spans_pieces_never_leaks() {
        let mut matcher = StopMatcher::new(&["\n\nQ:".into()]);
        assert_eq!(matcher.push("yes\n"), Stop::Continue("yes".into()));
        assert_eq!(matcher.push("\nQ"), Stop::Continue(String::new()));
        assert_eq!(matcher.push(": no"), Stop::Reached { before: String::new(), stop: "\n\nQ:".into() });
        assert_eq!(run(&["END"], &["a E", "N", "x"]), ("a ENx".into(), None));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]), ("caf".into(), Some("é!".into())));
    }

    #[test]
    fn the_first_complete_stop_wins() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some("bc".into())));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), ("x".into(), Some("abc".into())));
        assert_eq!(run(&[""], &["text"]), ("text".into(), None));
    }

    #[test]
    fn a_stop_text_that_begins_in_passed_text_may_end_after_it() {
        let stops = ["ab".into(), "bcd".into()];
        let mut matcher = StopMatcher::new(&stops);
        assert_eq!(matcher.pass("xab"), "xa", "a stop text that ends there counts as text");
        assert_eq!(matcher.push("c"), Stop::Continue(String::new()));
        assert_eq!(matcher.push("d"), Stop::Reached { before: String::new(), stop: "bcd".into() });
        let mut matcher = StopMatcher::new(&stops);
        assert_eq!(matcher.pass("a"), "");
        assert_eq!(matcher.push("b"), Stop::Reached { before: String::new(), stop: "ab".into() });
    }

    #[test]
    fn a_long_stop_text_costs_about_its_length_at_each_piece() {
        // Comparing all its beginnings with the text would be some terabytes for each piece.
        let most = "a".repeat(1 << 22);
        let stop = format!("{most}b");
        let mut matcher = StopMatcher::new(std::slice::from_ref(&stop));
        assert_eq!(matcher.push(&most), Stop::Continue(String::new()));
        assert_eq!(matcher.push("aaa"), Stop::Continue("aaa".into()));
        assert_eq!(matcher.push("b"), Stop::Reached { before: String::new(), stop });
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_the_cut_into_pieces(
            text in "[abé]{0,12}", stops in proptest::collection::vec("[abé]{0,3}", 0..4), cuts in any::<u16>(),
        ) {
            let whole = [text.as_str()];
            let mut pieces = vec![String::new()];
            for (i, c) in text.chars().enumerate() {
                if cuts >> (i % 16) & 1 == 1 { pieces.push(String::new()); }
                pieces.last_mut().unwrap().push(c);
            }
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &pieces), run(&stops, &whole));
        }
    }
}
