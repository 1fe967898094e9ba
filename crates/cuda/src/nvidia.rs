//! An NVIDIA GPU as the device of a step.

mod compile;
mod memory;
mod products;
mod recorder;
mod timer;

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg as _, result};

use crate::device::{Address, Argument, KernelDevice, Launch, Product};
use crate::gpu::driver;
use crate::nvidia::memory::Memory;
use crate::nvidia::products::GpuProducts;
use crate::nvidia::recorder::PassRecorder;
use crate::nvidia::timer::KernelTimer;
use crate::pass::Pass;
use crate::{CudaError, Gpu, KernelTime, kernels};

/// A stream of a GPU with one allocation and the compiled kernels.
pub(crate) struct Nvidia {
    passes: PassRecorder,
    products: GpuProducts,
    functions: HashMap<&'static str, CudaFunction>,
    stream: Arc<CudaStream>,
    arena: Memory,
    /// While it is set, every run is timed.
    timer: Option<KernelTimer>,
}

impl Nvidia {
    /// Allocates the memory and compiles the kernels.
    pub(crate) fn new(gpu: &Gpu, bytes: usize, defines: &[String]) -> Result<Self, CudaError> {
        let context = gpu.context();
        let stream = context.new_stream().map_err(driver("making a stream"))?;
        let capability = context.compute_capability().map_err(driver("asking for the capability"))?;
        let (major, minor) = capability;
        let image = compile::compile(&format!("compute_{major}{minor}"), defines)?;
        let module = context.load_module(image).map_err(driver(
            "loading the kernels (is NVRTC newer than the driver? CUDA 13.0's goes with driver 580)",
        ))?;
        let function = |name| {
            let function = module.load_function(name).map_err(driver("looking a kernel up"))?;
            Ok((name, function))
        };
        let functions = kernels::NAMES.into_iter().map(function).collect::<Result<_, CudaError>>()?;
        let workspace = Memory::new(gpu, &stream, products::WORKSPACE)?;
        let arena = Memory::new(gpu, &stream, bytes)?;
        let (passes, products) = (PassRecorder::default(), GpuProducts::new(workspace)?);
        Ok(Self { passes, products, functions, stream, arena, timer: None })
    }

    /// True if this is a stream of the same GPU.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        Arc::ptr_eq(self.stream.context(), gpu.context())
    }

    /// Starts to time each kernel and product.
    pub(crate) fn begin_profile(&mut self) {
        self.timer = Some(KernelTimer::default());
    }

    /// Waits for the GPU and returns the times since [`Nvidia::begin_profile`], the longest first.
    pub(crate) fn end_profile(&mut self) -> Result<Vec<KernelTime>, CudaError> {
        self.timer.take().map_or(Ok(vec![]), |timer| timer.times(&self.stream))
    }

    fn bind(&self) -> Result<(), CudaError> {
        self.stream.context().bind_to_thread().map_err(driver("binding the GPU to the thread"))
    }
}

impl KernelDevice for Nvidia {
    fn arena(&self) -> Address {
        self.arena.address
    }

    fn begin_pass(&mut self, pass: Pass) -> Result<bool, CudaError> {
        if self.timer.is_some() {
            return Ok(false);
        }
        self.passes.begin(pass, &self.stream)
    }

    fn end_pass(&mut self, pass: Pass, complete: bool) -> Result<bool, CudaError> {
        self.passes.end(pass, complete, &self.stream)
    }

    fn forget_passes(&mut self) {
        self.passes.forget();
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: callers stay within the arena. The bytes are pageable memory, so the driver has read them when this
        // returns, and the slice may end then.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.stream.cu_stream()) }
            .map_err(driver("copying to the GPU"))
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: callers stay within the arena; the stream is waited for before the slice ends.
        unsafe { result::memcpy_dtoh_async(bytes, from.0, self.stream.cu_stream()) }
            .map_err(driver("copying from the GPU"))?;
        self.stream.synchronize().map_err(driver("waiting for the GPU"))
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), CudaError> {
        self.bind()?;
        // SAFETY: callers stay within the arena.
        unsafe { result::memset_d8_async(at.0, 0, bytes, self.stream.cu_stream()) }
            .map_err(driver("filling memory with zeros"))
    }

    fn launch(&mut self, launch: Launch, arguments: &[Argument]) -> Result<(), CudaError> {
        let Some(function) = self.functions.get(launch.kernel) else {
            let problem = "is not among the kernels".to_owned();
            return Err(CudaError::Argument { what: launch.kernel, problem });
        };
        let mut builder = self.stream.launch_builder(function);
        for argument in arguments {
            match argument {
                Argument::Address(Address(value)) | Argument::U64(value) => builder.arg(value),
                Argument::I32(value) => builder.arg(value),
                Argument::F32(value) => builder.arg(value),
                Argument::F64(value) => builder.arg(value),
            };
        }
        let config = LaunchConfig {
            grid_dim: (launch.grid.x as u32, launch.grid.y as u32, 1),
            block_dim: (launch.threads as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        let begin = self.timer.as_ref().map(|_| timer::mark(&self.stream)).transpose()?;
        // SAFETY: the engine passes the arguments of the kernel's signature, with buffers of the arena that cover the
        // whole grid. The tests run the same calls with the same kernels on the host (src/host.rs).
        unsafe { builder.launch(config) }.map_err(driver(launch.kernel))?;
        if let (Some(timer), Some(begin)) = (&mut self.timer, begin) {
            timer.add(launch.kernel.to_owned(), begin, &self.stream)?;
        }
        Ok(())
    }

    fn multiply(&mut self, product: &Product) -> Result<(), CudaError> {
        self.bind()?;
        let begin = self.timer.as_ref().map(|_| timer::mark(&self.stream)).transpose()?;
        self.products.multiply(product, &self.stream)?;
        if let (Some(timer), Some(begin)) = (&mut self.timer, begin) {
            let Product { rows, columns, inner, .. } = product;
            timer.add(format!("product {rows} × {inner} × {columns}"), begin, &self.stream)?;
        }
        Ok(())
    }
}
