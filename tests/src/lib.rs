//! What the end-to-end tests share: the real binary with time limits, a small real run, HTTP without a client library,
//! and the Python clients of `.venv`.
//!
//! It holds no checks of its own and is used by nothing but tests, which is why it may panic.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

pub mod binary;
pub mod http;
pub mod python;
pub mod run;
