//! Checks that the modules can be cut into fragments.

use dipaco_model::level_specs;
use dipaco_sync::{FragmentsError, Pattern};
use dipaco_topology::Topology;

use super::Problems;
use crate::RunConfig;

impl RunConfig {
    /// Checks that the modules of each level have at least as many parts as fragments. The model fits the topology.
    pub(super) fn check_fragments(&self, topology: &Topology, problems: &mut Problems) {
        let fragments = self.sync.fragments;
        for level in 0..topology.levels() {
            let tensors = level_specs(&self.model, topology, level);
            let parts = match self.sync.pattern {
                Pattern::Balanced => tensors.len(),
                Pattern::Strided | Pattern::Sequential => {
                    tensors.chunk_by(|tensor, next| tensor.part == next.part).count()
                }
            };
            if fragments as usize > parts {
                let why = FragmentsError { parts, fragments };
                problems.add(format!("sync.fragments does not fit the modules of level {level}: {why}"));
            }
        }
    }
}
