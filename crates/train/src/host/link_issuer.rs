//! Makes links to objects of the run's store.

use std::time::{Duration, Instant};

use dipaco_net::RareWarning;
use dipaco_protocol::{ObjectLink, Response};
use dipaco_store::{ObjectRef, RunStore};

/// Life of a link in seconds. A reader asks anew for a link when a third of it is over.
const LIFE: u32 = 15 * 60;

/// Makes links for peers, if the run allows it and the store can.
pub(crate) struct LinkIssuer {
    /// `None` if the run makes no links.
    store: Option<RunStore>,
    warnings: RareWarning,
}

impl LinkIssuer {
    /// Links to objects of `store`; none if `enabled` is false.
    pub(crate) fn new(store: &RunStore, enabled: bool) -> Self {
        Self { store: enabled.then(|| store.clone()), warnings: RareWarning::default() }
    }

    /// The answer to a peer that asks for a link to an object which it may fetch.
    pub(crate) async fn answer(&self, object: &ObjectRef) -> Response {
        let Some(store) = &self.store else { return Response::NoLink };
        match store.link(&object.name, Duration::from_secs(LIFE.into())).await {
            Ok(Some(address)) => Response::Link(ObjectLink { address, seconds: LIFE }),
            Ok(None) => Response::NoLink,
            Err(error) => {
                if let Some(suppressed) = self.warnings.due(Instant::now()) {
                    tracing::warn!(
                        %error,
                        suppressed,
                        "a link to the store can't be made; workers fetch objects through this process"
                    );
                }
                Response::NoLink
            }
        }
    }
}
