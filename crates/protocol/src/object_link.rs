//! Links to objects of the run's store.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An address at which everybody can read one object over HTTP for some time.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectLink {
    /// The address.
    pub address: String,
    /// Seconds from the answer until the address ends.
    pub seconds: u32,
}

impl fmt::Debug for ObjectLink {
    /// Without the address, which is a right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectLink").field("seconds", &self.seconds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Response;

    #[test]
    fn an_address_does_not_get_into_messages() {
        let link = ObjectLink { address: "https://host/object?signature=hush".into(), seconds: 900 };
        let text = format!("{:?}", Response::Link(link));
        assert!(!text.contains("hush") && text.contains("900"), "{text}");
    }
}
