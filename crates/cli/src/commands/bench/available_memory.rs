//! Whether the memory of this machine is enough for a measurement.

use dipaco_telemetry::human;

use crate::error::CliError;

/// Refuses work that needs more memory than there is: the system would kill the program. `work` begins the message,
/// with its verb: "this step needs".
pub(super) fn check(work: &str, needs: u64, available: Option<u64>, remedy: &str) -> Result<(), CliError> {
    match available {
        Some(available) if needs > available => Err(CliError::Usage {
            message: format!(
                "{work} {} of memory, and {} are available",
                human::bytes(needs),
                human::bytes(available)
            ),
            remedy: remedy.to_owned(),
        }),
        _ => Ok(()),
    }
}
