//! Fused tensor operations of a path with their gradients.
