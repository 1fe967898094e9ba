//! Matrix products with cuBLASLt.
//!
//! The description and the algorithm of each kind of product are looked up once and kept. cuBLASLt is column-major, so
//! a row-major `left · right` is its `rightᵀ · leftᵀ`. In-place reductions are not allowed, because the order of their
//! sums depends on timing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::CudaStream;
use dipaco_model::Dtype;

use super::memory::Memory;
use crate::CudaError;
use crate::device::{Address, Product};

/// Bytes of scratch memory for cuBLASLt, as NVIDIA advises for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

/// The properties of a product that determine its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    rows: usize,
    columns: usize,
    inner: usize,
    factors: Dtype,
    left_transposed: bool,
    right_transposed: bool,
    result: Dtype,
    added: bool,
    /// Alignments of right, left, added and result, in bytes, at most 256.
    alignments: [u32; 4],
}

/// cuBLASLt with its scratch memory and a plan for each kind of product so far.
pub(super) struct GpuProducts {
    plans: HashMap<Kind, Plan>,
    handle: Handle,
    workspace: Memory,
}

// SAFETY: any thread may use cuBLASLt's handle and descriptions, one at a time; `&mut self` ensures that.
unsafe impl Send for GpuProducts {}

/// The handle of cuBLASLt.
struct Handle(sys::cublasLtHandle_t);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `create_handle` and destroyed once. A drop can't return the error.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// The layout of a matrix.
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    /// Describes a row-major matrix to cuBLASLt as a column-major matrix of `columns` × `rows`.
    fn new(number: Dtype, rows: usize, columns: usize) -> Result<Self, CublasError> {
        result::create_matrix_layout(data_type(number), columns as u64, rows as u64, columns as i64).map(Self)
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: made by `create_matrix_layout` and destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// The description of a product.
struct Description(sys::cublasLtMatmulDesc_t);

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `create_matmul_desc` and destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// The requirements for an algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T: bytemuck::NoUninit>(
        &self,
        key: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> Result<(), CublasError> {
        let (at, size) = ((&raw const value).cast::<c_void>(), size_of::<T>());
        // SAFETY: the preference lives, and cuBLASLt copies `size` bytes of the value before it returns.
        unsafe { result::set_matmul_pref_attribute(self.0, key, at, size) }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `create_matmul_pref` and destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// Descriptions and algorithm of a kind of product.
struct Plan {
    description: Description,
    right: MatrixLayout,
    left: MatrixLayout,
    result: MatrixLayout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Plan {
    fn new(handle: &Handle, kind: &Kind) -> Result<Self, CublasError> {
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        use sys::cublasLtMatmulPreferenceAttributes_t as Key;

        let f32 = data_type(Dtype::F32);
        let description =
            Description(result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, f32)?);
        let transposed = [
            (CUBLASLT_MATMUL_DESC_TRANSA, kind.right_transposed),
            (CUBLASLT_MATMUL_DESC_TRANSB, kind.left_transposed),
        ];
        for (key, transposed) in transposed {
            let value = i32::from(transposed);
            let at = (&raw const value).cast::<c_void>();
            // SAFETY: the description lives, and cuBLASLt copies the four bytes before it returns.
            unsafe { result::set_matmul_desc_attribute(description.0, key, at, size_of::<i32>()) }?;
        }
        let stored = |rows, columns, transposed| if transposed { (columns, rows) } else { (rows, columns) };
        let (rows, columns) = stored(kind.inner, kind.columns, kind.right_transposed);
        let right = MatrixLayout::new(kind.factors, rows, columns)?;
        let (rows, columns) = stored(kind.rows, kind.inner, kind.left_transposed);
        let left = MatrixLayout::new(kind.factors, rows, columns)?;
        let layout = MatrixLayout::new(kind.result, kind.rows, kind.columns)?;

        let preference = Preference(result::create_matmul_pref()?);
        preference.set(Key::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE as u64)?;
        let in_order = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Key::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, in_order)?;
        let keys = [
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (key, alignment) in keys.into_iter().zip(kind.alignments) {
            preference.set(key, alignment)?;
        }
        // SAFETY: the handle and all descriptions live and describe one product.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                handle.0,
                description.0,
                right.0,
                left.0,
                layout.0,
                layout.0,
                preference.0,
            )
        }?;
        Ok(Self { description, right, left, result: layout, algorithm: found.algo })
    }
}

impl GpuProducts {
    pub(super) fn new(workspace: Memory) -> Result<Self, CudaError> {
        let handle = result::create_handle()
            .map_err(|source| CudaError::Product { what: "starting".to_owned(), source })?;
        Ok(Self { plans: HashMap::new(), handle: Handle(handle), workspace })
    }

    /// Queues a product on the stream, whose context must be current.
    pub(super) fn multiply(&mut self, product: &Product, stream: &Arc<CudaStream>) -> Result<(), CudaError> {
        let added = product.added.unwrap_or(product.result);
        let kind = Kind {
            rows: product.rows,
            columns: product.columns,
            inner: product.inner,
            factors: product.factors,
            left_transposed: product.left_transposed,
            right_transposed: product.right_transposed,
            result: product.result_type,
            added: product.added.is_some(),
            alignments: [product.right, product.left, added, product.result].map(alignment),
        };
        let Product { rows, columns, inner, .. } = *product;
        let error = |source| CudaError::Product {
            what: format!("a product of {rows} × {inner} × {columns}"),
            source,
        };
        let plan = match self.plans.entry(kind) {
            Entry::Occupied(plan) => plan.into_mut(),
            Entry::Vacant(place) => place.insert(Plan::new(&self.handle, &kind).map_err(error)?),
        };
        let (one, beta) = (1f32, f32::from(u8::from(kind.added)));
        let pointer = |address: Address| address.0 as *mut c_void;
        // SAFETY: all descriptions live; the engine's buffers have the sizes of the product; cuBLASLt reads the two
        // scalars before this returns; only this stream uses the workspace.
        unsafe {
            result::matmul(
                self.handle.0,
                plan.description.0,
                (&raw const one).cast(),
                (&raw const beta).cast(),
                pointer(product.right),
                plan.right.0,
                pointer(product.left),
                plan.left.0,
                pointer(added),
                plan.result.0,
                pointer(product.result),
                plan.result.0,
                &raw const plan.algorithm,
                pointer(self.workspace.address),
                WORKSPACE,
                stream.cu_stream().cast(),
            )
        }
        .map_err(error)
    }
}

fn data_type(number: Dtype) -> sys::cudaDataType {
    match number {
        Dtype::F32 => sys::cudaDataType::CUDA_R_32F,
        Dtype::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

/// Returns the largest power of two, at most 256, that divides an address.
fn alignment(address: Address) -> u32 {
    1 << address.0.trailing_zeros().min(8)
}
