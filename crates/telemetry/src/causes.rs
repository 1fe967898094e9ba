//! The causes of an error.

use std::error::Error;

/// The messages of the causes of a failure, the nearest first. `what` is the message of the failure itself, and `cause` its
/// source. Some libraries repeat their source in their own message. Such a message is left out.
#[must_use]
pub fn causes(what: &str, cause: Option<&(dyn Error + 'static)>) -> Vec<String> {
    let mut last = what.to_owned();
    let mut found = Vec::new();
    for cause in std::iter::successors(cause, |&cause| cause.source()) {
        let text = cause.to_string();
        if !last.contains(&text) {
            found.push(text.clone());
        }
        last = text;
    }
    found
}
