//! Settings of a run of experiments.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dipaco_path::DeviceChoice;
use tokio_util::sync::CancellationToken;

use crate::import::PretrainedModel;

/// Settings of a run of experiments that do not change the results.
#[derive(Clone, Debug)]
pub struct ExperimentOptions {
    /// Text to train on: files and folders, as [`prepare`](crate::prepare::prepare) takes them.
    pub data: Vec<PathBuf>,
    /// Text to evaluate on; when empty, a part of the data.
    pub validation: Vec<PathBuf>,
    /// The pretrained model that all seed models begin with; none if they begin with random weights.
    pub model: Option<PretrainedModel>,
    /// Label file of the text: domains of documents by address.
    pub labels: Option<PathBuf>,
    /// The folder of cells and results.
    pub out: PathBuf,
    /// Worker processes of each training, at least 1.
    pub workers: usize,
    /// The program `dipaco`, which the worker processes run.
    pub program: PathBuf,
    /// Device to train on.
    pub device: DeviceChoice,
    /// Keep the training shards and the moments of finished cells, which take most of their space.
    pub keep_all: bool,
}

/// A request to stop, for steps that block and for steps that do not.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    /// Set when the work is to stop.
    pub flag: Arc<AtomicBool>,
    /// Triggered when the work is to stop.
    pub token: CancellationToken,
}

impl Cancel {
    /// Returns whether the work is to stop.
    pub fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || self.token.is_cancelled()
    }
}
