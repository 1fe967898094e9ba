//! The HTTP port of a process.

use std::net::SocketAddr;
use std::sync::Arc;

use dipaco_monitor::Watched;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::PipelineError;

/// Answers HTTP requests about a process at `address` until `shutdown`. `what` names the process in the log.
///
/// # Errors
/// [`PipelineError::Watch`] when the address can't be listened on.
pub(crate) async fn watch(
    address: SocketAddr,
    what: &str,
    watched: Arc<dyn Watched>,
    shutdown: CancellationToken,
) -> Result<(), PipelineError> {
    let failed = |source| PipelineError::Watch { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!("the {what} can be watched at http://{address}/");
    if !address.ip().is_loopback() {
        tracing::warn!(
            "everybody who can reach {address} can watch the {what}: the port asks for no password"
        );
    }
    tokio::spawn(dipaco_monitor::serve(listener, watched, shutdown));
    Ok(())
}
