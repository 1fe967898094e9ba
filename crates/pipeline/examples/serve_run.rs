//! Serves a trained run over HTTP: `cargo run --example serve_run -- RUN_DIRECTORY [ADDRESS]`.
//!
//! Without an address the system chooses a port. The program prints the server's address and runs until Ctrl-C.

use std::error::Error;
use std::io::Write;

use dipaco_pipeline::{Run, Version, serve};
use dipaco_server::LoadProgress;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: serve_run RUN_DIRECTORY [ADDRESS]")?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());

    let Run { directory, config } = Run::open(directory)?;
    let listener = TcpListener::bind(address).await?;
    let state =
        serve::open(&directory, &config, config.serve.clone(), Version::Current, &LoadProgress::default())
            .await?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;

    let stop = CancellationToken::new();
    let ctrl_c = stop.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        ctrl_c.cancel();
    });
    dipaco_server::serve(listener, state, stop).await?;
    Ok(())
}
