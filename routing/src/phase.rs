//! Phases of routing: dividing the text among the paths anew during the training.

use serde::{Deserialize, Serialize};

use crate::RoutingError;

/// The router that a phase begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PhaseKind {
    /// A linear classifier of a document's features, fitted on the path with the highest likelihood for each reserved
    /// document (discriminative routing, arXiv:2403.10616 §2.4.2). Written `"discriminative"`.
    #[default]
    Discriminative,
}

/// Element of `[[routing.phases]]`: after a round, the paths in their state of that round decide the division of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseConfig {
    /// Rounds before the phase, counted from the start of the training; at least 1.
    pub round: u32,
    /// The router: `"discriminative"`, the default.
    #[serde(default)]
    pub kind: PhaseKind,
}

/// Checks that each phase begins at least one round after the phase before.
pub(crate) fn check(phases: &[PhaseConfig]) -> Result<(), RoutingError> {
    let mut before = 0;
    for phase in phases {
        if phase.round <= before {
            let problem = "phases begin after at least one round each, in the order of their rounds";
            return Err(RoutingError::Config {
                key: "phases[].round",
                value: phase.round.to_string(),
                problem,
            });
        }
        before = phase.round;
    }
    Ok(())
}
