//! Which weights of a run a reader takes.

/// Which version of its modules a path is composed of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The global weights after the last outer step.
    #[default]
    Current,
    /// The version with the lowest loss on the path's held-out documents (arXiv:2403.10616 §2.7).
    Best,
}
