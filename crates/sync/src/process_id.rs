//! Identity of a process of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identity of a worker's or synchronizer's process. Only the whole identity uses a lease, so neither a borrowed name
/// nor a successor of the process does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Name of the verified token.
    pub token: String,
    /// Name of the worker or synchronizer. Holders of different tokens may choose the same name.
    pub name: String,
    /// Random number that tells a process from others under the same token and name. Only the process and the coordinator
    /// know it.
    pub instance: u64,
}

impl ProcessId {
    /// A process without a token, in a simulation or a test.
    #[must_use]
    pub fn local(name: &str) -> Self {
        Self { token: String::new(), name: name.to_owned(), instance: 0 }
    }

    /// True if both are processes of the same worker or synchronizer: they have the same token and name.
    #[must_use]
    pub fn is_kin_of(&self, other: &Self) -> bool {
        (&self.token, &self.name) == (&other.token, &other.name)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
