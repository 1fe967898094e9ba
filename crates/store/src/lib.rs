//! The run store: immutable objects, one manifest replaced by compare-and-swap.
