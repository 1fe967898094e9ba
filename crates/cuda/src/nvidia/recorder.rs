//! Records of passes as CUDA graphs.
//!
//! To launch a kernel takes the driver some microseconds, as long as a kernel of a small path runs. A graph launches all kernels
//! of a pass at once.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

use crate::CudaError;
use crate::gpu::driver;
use crate::pass::Pass;

/// Passes that are remembered. A run has one or two shapes of batches; text that is scored has rows of many lengths.
const PASSES: usize = 64;

/// The passes of a stream so far, each with its graph once it was recorded.
#[derive(Default)]
pub(super) struct PassRecorder {
    passes: HashMap<Pass, Option<CudaGraph>>,
    recording: bool,
}

// SAFETY: any thread may use a graph, one at a time; `&mut self` ensures that.
unsafe impl Send for PassRecorder {}

impl PassRecorder {
    /// Launches the graph of a pass and returns true, or returns false. A pass is recorded when it begins for the second
    /// time: the first time has loaded all that its kernels and products need.
    pub(super) fn begin(&mut self, pass: Pass, stream: &Arc<CudaStream>) -> Result<bool, CudaError> {
        match self.passes.get(&pass) {
            Some(Some(graph)) => {
                graph.launch().map_err(driver("launching a graph"))?;
                return Ok(true);
            }
            Some(None) => {
                // Other threads go on to take memory and to wait meanwhile.
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).map_err(driver("starting a graph"))?;
                self.recording = true;
            }
            None if self.passes.len() < PASSES => {
                self.passes.insert(pass, None);
            }
            None => {}
        }
        Ok(false)
    }

    /// Ends the recording, if there is one, and launches its graph. False if the recording is spoilt: another thread can do
    /// that when it frees memory of the GPU, for example. The pass is recorded the next time.
    pub(super) fn end(
        &mut self,
        pass: Pass,
        complete: bool,
        stream: &Arc<CudaStream>,
    ) -> Result<bool, CudaError> {
        if !std::mem::take(&mut self.recording) {
            return Ok(true);
        }
        match stream.end_capture(CUgraphInstantiate_flags(0)) {
            Ok(Some(graph)) if complete => {
                graph.launch().map_err(driver("launching a graph"))?;
                self.passes.insert(pass, Some(graph));
                Ok(true)
            }
            // If the reason is not the recording, the calls of the pass fail again without it.
            Ok(_) | Err(_) => Ok(false),
        }
    }

    pub(super) fn forget(&mut self) {
        self.passes.clear();
    }
}
