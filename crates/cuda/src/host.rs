//! The host as the device of a step, for tests: the same kernels, compiled by a C++ compiler (tests/host), and products
//! in plain loops.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use dipaco_model::{Dtype, ModelConfig};
use libloading::Library;

use crate::arena::{Arena, Purpose};
use crate::device::{Address, Argument, KernelDevice, Launch, Product};
use crate::engine::{Engine, to_bf16};
use crate::pass::Pass;
use crate::{CudaError, CudaOptions, PathUpload, kernels};

/// Held during a launch: the emulator has global state, and all hosts of one shape share one loaded library.
static RUNNING: Mutex<()> = Mutex::new(());

type LaunchFunction =
    unsafe extern "C" fn(*const c_char, c_int, c_int, c_int, *const *const c_void, c_int) -> c_int;

/// The kernels for one configuration on the host.
pub(crate) struct Host {
    library: Library,
    /// Memory in units of 256 bytes.
    arena: Vec<[u64; 32]>,
    /// The calls of each pass so far. From the second time on they run from here.
    passes: HashMap<Pass, Vec<Call>>,
    /// The calls of the pass that is recorded: they run at its end.
    recording: Option<Vec<Call>>,
    /// True to drop the next recording.
    pub(crate) spoils: bool,
    /// True to run threads and blocks in descending order and asynchronous copies at once.
    pub(crate) backwards: bool,
}

/// A recorded call.
#[derive(Clone, Debug)]
enum Call {
    Zero(Address, usize),
    Launch(Launch, Vec<Argument>),
    Multiply(Product),
}

/// Returns the command of the C++ compiler. Fails the test if it does not run: without it no kernel would be tested.
fn compiler() -> String {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let works = Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(
        works,
        "the tests of the GPU kernels need a C++17 compiler, and `{compiler}` does not run: install one \
         (`source scripts/setup.sh` does so) or name one in CXX"
    );
    compiler
}

/// Returns the compiled kernels, which stay beside the test program from one run to the next.
fn library(compiler: &str, defines: &[String]) -> PathBuf {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host");
    let emulator =
        ["primitives.h", "emulator.cpp"].map(|file| std::fs::read_to_string(host.join(file)).unwrap());
    let mut hasher = DefaultHasher::new();
    (compiler, defines, emulator, kernels::source()).hash(&mut hasher);
    let folder = std::env::current_exe().unwrap().with_file_name("dipaco-cuda-host");
    let library = folder.join(format!("{:016x}.so", hasher.finish()));
    if library.exists() {
        return library;
    }
    std::fs::create_dir_all(&folder).unwrap();
    // Compiled under a unique name and then renamed: other tests may compile the same kernels at the same time.
    let work = tempfile::tempdir_in(&folder).unwrap();
    let (source, made) = (work.path().join("kernels.inc"), work.path().join("kernels.so"));
    let text = kernels::source();
    // The emulator's primitives.h replaces the first file.
    std::fs::write(&source, &text[text.find("#line 1 \"common.cuh\"").unwrap()..]).unwrap();
    let status = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-w"])
        .args(defines)
        .arg(format!("-DKERNELS=\"{}\"", source.display()))
        .arg(host.join("emulator.cpp"))
        .arg("-o")
        .arg(&made)
        .status()
        .unwrap();
    assert!(status.success(), "the kernels do not compile on the host");
    std::fs::rename(made, &library).unwrap();
    library
}

impl Host {
    /// Compiles the kernels and allocates `bytes` of memory.
    pub(crate) fn new(config: &ModelConfig, bytes: usize) -> Self {
        // SAFETY: the library was compiled from this package's sources and has no initialisation.
        let library = unsafe { Library::new(library(&compiler(), &kernels::defines(config))) }.unwrap();
        let arena = vec![[0; 32]; bytes.div_ceil(256) + 1];
        Self { library, arena, passes: HashMap::new(), recording: None, spoils: false, backwards: false }
    }

    fn replay(&mut self, calls: Vec<Call>) -> Result<(), CudaError> {
        for call in calls {
            match call {
                Call::Zero(at, bytes) => self.zero(at, bytes)?,
                Call::Launch(launch, arguments) => self.launch(launch, &arguments)?,
                Call::Multiply(product) => self.multiply(&product)?,
            }
        }
        Ok(())
    }

    /// Puts a path on the host.
    pub(crate) fn engine(config: &ModelConfig, options: CudaOptions, path: &PathUpload<'_>) -> Engine<Self> {
        let purpose = Purpose::Training { checkpointing: options.checkpointing };
        let bytes = Arena::new(config, options.micro_batch, purpose, Address::NULL).bytes;
        Engine::new(Self::new(config, bytes), config.clone(), options, path).unwrap()
    }

    /// Puts a path on the host for forward passes of `sequences` rows.
    pub(crate) fn reader(config: &ModelConfig, sequences: usize, weights: &[f32]) -> Engine<Self> {
        let purpose = Purpose::Reading;
        let bytes = Arena::new(config, sequences, purpose, Address::NULL).bytes;
        Engine::with_weights(Self::new(config, bytes), config.clone(), sequences, purpose, weights).unwrap()
    }
}

/// Returns the address of numbers of a test.
pub(crate) fn address<T>(values: &mut [T]) -> Address {
    Address(values.as_mut_ptr() as u64)
}

impl KernelDevice for Host {
    fn arena(&self) -> Address {
        // Not all allocators give 256 bytes of alignment.
        Address((self.arena.as_ptr() as u64).next_multiple_of(256))
    }

    fn begin_pass(&mut self, pass: Pass) -> Result<bool, CudaError> {
        let Some(calls) = self.passes.get(&pass).cloned() else {
            self.recording = Some(Vec::new());
            return Ok(false);
        };
        self.replay(calls)?;
        Ok(true)
    }

    fn end_pass(&mut self, pass: Pass, complete: bool) -> Result<bool, CudaError> {
        let Some(calls) = self.recording.take() else { return Ok(true) };
        if std::mem::take(&mut self.spoils) || !complete {
            return Ok(false);
        }
        self.passes.insert(pass, calls.clone());
        self.replay(calls)?;
        Ok(true)
    }

    fn forget_passes(&mut self) {
        self.passes.clear();
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(self.recording.is_none(), "a copy is no part of a pass");
        // SAFETY: the engine stays within the arena.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(self.recording.is_none(), "a copy is no part of a pass");
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), CudaError> {
        if let Some(calls) = &mut self.recording {
            calls.push(Call::Zero(at, bytes));
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(at.0 as *mut u8, 0, bytes) };
        Ok(())
    }

    fn launch(&mut self, launch: Launch, arguments: &[Argument]) -> Result<(), CudaError> {
        if let Some(calls) = &mut self.recording {
            calls.push(Call::Launch(launch, arguments.to_vec()));
            return Ok(());
        }
        let name = CString::new(launch.kernel).unwrap();
        let pointers: Vec<*const c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Address(Address(value)) | Argument::U64(value) => (&raw const *value).cast(),
                Argument::I32(value) => (&raw const *value).cast(),
                Argument::F32(value) => (&raw const *value).cast(),
                Argument::F64(value) => (&raw const *value).cast(),
            })
            .collect();
        let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the emulator has this signature and reads the arguments of the kernel's signature.
        let unknown = unsafe {
            let function = self.library.get::<LaunchFunction>(b"launch").unwrap();
            function(
                name.as_ptr(),
                launch.grid.x as c_int,
                launch.grid.y as c_int,
                launch.threads as c_int,
                pointers.as_ptr(),
                c_int::from(self.backwards),
            )
        };
        assert_eq!(unknown, 0, "no kernel `{}`", launch.kernel);
        Ok(())
    }

    fn multiply(&mut self, product: &Product) -> Result<(), CudaError> {
        if let Some(calls) = &mut self.recording {
            calls.push(Call::Multiply(*product));
            return Ok(());
        }
        let Product { rows, columns, inner, .. } = *product;
        let left = read(product.left, product.factors, rows * inner);
        let right = read(product.right, product.factors, inner * columns);
        let added = product.added.map(|added| read(added, product.result_type, rows * columns));
        for row in 0..rows {
            for column in 0..columns {
                let term = |k: usize| {
                    let l = left[if product.left_transposed { k * rows + row } else { row * inner + k }];
                    let r = right
                        [if product.right_transposed { column * inner + k } else { k * columns + column }];
                    f64::from(l) * f64::from(r)
                };
                let at = row * columns + column;
                let sum: f64 = (0..inner).map(term).sum();
                let value = (sum + added.as_ref().map_or(0.0, |added| f64::from(added[at]))) as f32;
                // SAFETY: the engine's buffers have the sizes of the product.
                unsafe {
                    match product.result_type {
                        Dtype::F32 => *(product.result.0 as *mut f32).add(at) = value,
                        Dtype::Bf16 => *(product.result.0 as *mut u16).add(at) = to_bf16(value),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads numbers of a buffer as f32.
fn read(at: Address, number: Dtype, count: usize) -> Vec<f32> {
    // SAFETY: callers pass the size and the type of the buffer.
    unsafe {
        match number {
            Dtype::F32 => std::slice::from_raw_parts(at.0 as *const f32, count).to_vec(),
            Dtype::Bf16 => std::slice::from_raw_parts(at.0 as *const u16, count)
                .iter()
                .map(|&bits| f32::from_bits(u32::from(bits) << 16))
                .collect(),
        }
    }
}
