//! GPU time by kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, sys};

use crate::gpu::driver;
use crate::{CudaError, KernelTime};

/// Timed runs, each with the events before and after it.
#[derive(Default)]
pub(super) struct KernelTimer {
    spans: Vec<(String, CudaEvent, CudaEvent)>,
}

/// Records an event at the current place of the stream.
pub(super) fn mark(stream: &Arc<CudaStream>) -> Result<CudaEvent, CudaError> {
    stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver("recording an event"))
}

impl KernelTimer {
    /// Adds the run that started at `begin`.
    pub(super) fn add(
        &mut self,
        what: String,
        begin: CudaEvent,
        stream: &Arc<CudaStream>,
    ) -> Result<(), CudaError> {
        self.spans.push((what, begin, mark(stream)?));
        Ok(())
    }

    /// Returns the times by kernel, the longest first.
    pub(super) fn times(self, stream: &Arc<CudaStream>) -> Result<Vec<KernelTime>, CudaError> {
        stream.synchronize().map_err(driver("waiting for the GPU"))?;
        let mut sums: BTreeMap<String, (u32, f64)> = BTreeMap::new();
        for (what, begin, end) in self.spans {
            let milliseconds = begin.elapsed_ms(&end).map_err(driver("reading an event"))?;
            let (runs, seconds) = sums.entry(what).or_default();
            *runs += 1;
            *seconds += f64::from(milliseconds) * 1e-3;
        }
        let mut times: Vec<KernelTime> =
            sums.into_iter().map(|(what, (runs, seconds))| KernelTime { what, runs, seconds }).collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(times)
    }
}
