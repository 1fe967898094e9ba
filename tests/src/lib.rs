//! Shared parts of the end-to-end tests: the real binary with time limits, frozen inputs, a small real run, HTTP
//! without a client library, and the Python clients of `.venv`.
//!
//! It holds no checks of its own and only tests use it, which is why it may panic.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

pub mod azurite;
pub mod file_server;
pub mod fixtures;
pub mod grafana;
pub mod http;
pub mod object_store;
pub mod process;
pub mod python;
pub mod run;
pub mod training;
