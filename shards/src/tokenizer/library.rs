//! Calls of the tokenizers library.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::ShardsError;

thread_local! {
    /// True while this thread is in the library.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls the library for the tokenizer `name`. The library promises no error for every file: some vocabularies, patterns and
/// decoders make it panic when it reads them, or only when a text meets them. A panic of it is an error like its others, and
/// prints nothing.
pub(super) fn library<T>(
    name: &str,
    action: &'static str,
    call: impl FnOnce() -> tokenizers::Result<T>,
) -> Result<T, ShardsError> {
    keep_panics_quiet();
    INSIDE.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(false);
    let source = match outcome {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error,
        Err(panic) => format!("the tokenizers library broke off: {}", message(panic.as_ref())).into(),
    };
    Err(ShardsError::TokenizerLibrary { name: name.to_owned(), action, source })
}

/// Lets panics print nothing while their thread is in the library.
fn keep_panics_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if !INSIDE.get() {
                others(panic);
            }
        }));
    });
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a reason")
}
