//! The host as the device of a step, for tests: the same kernels, compiled by a C++ compiler (tests/host), and products
//! in plain loops.

use std::ffi::{CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use crate::arena::Arena;
use crate::device::{Address, Argument, Device, Launch, Number, Product};
use crate::engine::{Engine, to_bf16};
use crate::{CudaError, CudaOptions, PathShape, PathState, Precision, kernels};

/// The emulator's state is global to its library, and loading one twice gives the same.
static RUNNING: Mutex<()> = Mutex::new(());

type LaunchFunction =
    unsafe extern "C" fn(*const c_char, c_int, c_int, c_int, *const *const c_void, c_int) -> c_int;

/// The kernels for one shape on the host.
pub(crate) struct Host {
    library: Library,
    /// 256-byte units.
    arena: Vec<[u64; 32]>,
    /// Whether threads and blocks run in descending order, and asynchronous copies are made at once.
    pub(crate) backwards: bool,
}

/// The C++ compiler, or nothing (which is said) where there is none.
fn compiler() -> Option<String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let works = Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!(
            "SKIPPED: the GPU kernels were not run on the host, as there is no C++ compiler `{compiler}`"
        );
    }
    works.then_some(compiler)
}

/// The compiled kernels, kept beside the test's program from one run to the next.
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
    // Made under a name of its own and then renamed: other tests may do the same at the same time.
    let work = tempfile::tempdir_in(&folder).unwrap();
    let (source, made) = (work.path().join("kernels.inc"), work.path().join("kernels.so"));
    let text = kernels::source();
    // primitives.h takes the place of the first file.
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
    /// Compiles the kernels and takes `bytes` of memory; nothing where there is no C++ compiler.
    pub(crate) fn new(shape: &PathShape, precision: Precision, bytes: usize) -> Option<Self> {
        let compiler = compiler()?;
        // SAFETY: the library was compiled from this package's sources and has no initialisation.
        let library =
            unsafe { Library::new(library(&compiler, &kernels::defines(shape, precision))) }.unwrap();
        Some(Self { library, arena: vec![[0; 32]; bytes.div_ceil(256) + 1], backwards: false })
    }

    /// A path on the host.
    pub(crate) fn engine(
        shape: &PathShape,
        options: CudaOptions,
        state: &PathState<'_>,
    ) -> Option<Engine<Self>> {
        let bytes = Arena::new(shape, &options, Address::NULL).bytes;
        let host = Self::new(shape, options.precision, bytes)?;
        Some(Engine::new(host, shape.clone(), options, state).unwrap())
    }
}

/// The place of a test's own numbers.
pub(crate) fn address<T>(values: &mut [T]) -> Address {
    Address(values.as_mut_ptr() as u64)
}

impl Device for Host {
    fn arena(&self) -> Address {
        // Not all allocators give 256 bytes of alignment.
        Address((self.arena.as_ptr() as u64).next_multiple_of(256))
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: the engine stays within the arena.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: as above.
        unsafe { std::ptr::write_bytes(at.0 as *mut u8, 0, bytes) };
        Ok(())
    }

    fn launch(&mut self, launch: Launch, arguments: &[Argument]) -> Result<(), CudaError> {
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
        // SAFETY: the emulator has this signature, and reads as many arguments as the kernel takes, of its types.
        let unknown = unsafe {
            let function = self.library.get::<LaunchFunction>(b"launch").unwrap();
            function(
                name.as_ptr(),
                launch.grid.0 as c_int,
                launch.grid.1 as c_int,
                launch.threads as c_int,
                pointers.as_ptr(),
                c_int::from(self.backwards),
            )
        };
        assert_eq!(unknown, 0, "no kernel `{}`", launch.kernel);
        Ok(())
    }

    fn multiply(&mut self, product: &Product) -> Result<(), CudaError> {
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
                        Number::F32 => *(product.result.0 as *mut f32).add(at) = value,
                        Number::Bf16 => *(product.result.0 as *mut u16).add(at) = to_bf16(value),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Numbers of a buffer as f32.
pub(crate) fn read(at: Address, number: Number, count: usize) -> Vec<f32> {
    // SAFETY: callers know the buffer's size and type.
    unsafe {
        match number {
            Number::F32 => std::slice::from_raw_parts(at.0 as *const f32, count).to_vec(),
            Number::Bf16 => std::slice::from_raw_parts(at.0 as *const u16, count)
                .iter()
                .map(|&bits| f32::from_bits(u32::from(bits) << 16))
                .collect(),
        }
    }
}
