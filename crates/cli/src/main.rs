//! The program dipaco.
fn main() {}
