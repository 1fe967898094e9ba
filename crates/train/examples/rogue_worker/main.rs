//! Workers with a valid token that do harm, for long runs with disturbances (`scripts/soak.py --rogues`).
//!
//! ```text
//! rogue_worker TOKEN_FILE NAME hang FOLDER           trains, until its training thread stands still for good
//! rogue_worker TOKEN_FILE NAME wake FOLDER SECONDS   trains, and stands still for this time again and again
//! rogue_worker TOKEN_FILE NAME forge                 never trains, and lies
//! ```
//!
//! FOLDER is the worker's cache. Nothing of what they do wrong may count, so a synchronous run keeps the bits of a run
//! without them.

mod forge;
mod standstill;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dipaco_net::JoinToken;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [token, name, kind, rest @ ..] = words.as_slice() else {
        return Err("rogue_worker TOKEN_FILE NAME hang|wake|forge …".into());
    };
    let token = JoinToken::read_from(Path::new(token))?;
    match (kind.as_str(), rest) {
        ("hang", [folder]) => standstill::work_and_hang(token, name, PathBuf::from(folder)).await,
        ("wake", [folder, seconds]) => {
            let time = Duration::from_secs(seconds.parse()?);
            standstill::work_and_pause(token, name, PathBuf::from(folder), time).await
        }
        ("forge", []) => forge::lie(token, name).await,
        _ => Err(format!("no use of this program: {words:?}").into()),
    }
}
