//! Letters that a terminal shows as they are.

/// True for a letter that a terminal shows as it is. Text of strangers may hold commands to a terminal, as control
/// characters. The marks of a direction of writing show letters in another order than the text has.
#[must_use]
pub fn is_printable(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_to_a_terminal_and_marks_of_direction_are_not_printable() {
        let hidden = "\0\t\n\r\u{1b}\u{7f}\u{85}\u{9b}\u{202a}\u{202e}\u{2066}\u{2069}";
        assert!(hidden.chars().all(|letter| !is_printable(letter)));
        assert!("a größer ⏎\u{a0}\u{202f}\u{206a}😀".chars().all(is_printable));
    }
}
