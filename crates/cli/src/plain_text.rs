//! What a terminal gets of the text of others.

use dipaco_net::is_printable;

/// The text, in which letters are spelled out unless they are [printable](is_printable), line ends or tabs. Text of
/// others may hold commands to a terminal: documents, completions, names in files and answers of peers.
pub(crate) fn without_commands(text: &str) -> String {
    let is_plain = |letter: char| matches!(letter, '\n' | '\t') || is_printable(letter);
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_plain(letter) { out.push(letter) } else { out.extend(letter.escape_default()) }
    }
    out
}

/// The text on one line, with visible line ends and without commands to a terminal.
pub(crate) fn one_line(text: &str) -> String {
    without_commands(text).replace('\n', "⏎")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_strangers_sends_no_commands_to_a_terminal() {
        let found =
            without_commands("error: tensor `a\u{1b}[2J\u{9b}1mb\r` is\ttwo\nlines, größer\u{202e}txt\n");
        assert_eq!(found, "error: tensor `a\\u{1b}[2J\\u{9b}1mb\\r` is\ttwo\nlines, größer\\u{202e}txt\n");
    }

    #[test]
    fn a_completion_is_one_line_without_commands_to_a_terminal() {
        assert_eq!(one_line("a\nb\u{1b}[2J"), "a⏎b\\u{1b}[2J");
    }
}
