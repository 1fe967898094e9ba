//! End-to-end, chaos and golden tests over the real binary.
