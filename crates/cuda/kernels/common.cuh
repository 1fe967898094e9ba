// Common parts of several kernels. The compiler gets the shape of the path as constants:
//   BF16       1: products multiply bf16, 0: f32
//   WIDTH      D, the width of the residual stream
//   HEADS      H
//   HEAD_DIM   Dh
//   FFN        F
//   VOCABULARY V
//   VECTOR     elements that a thread moves at once: 8 when all widths are multiples of 8, else 1
// Buffers are row-major. The residual stream, weights, moments and gradients of weights are f32; the inputs of
// products are `element`. Every sum has a fixed order.

#if BF16
typedef bf16 element;
#else
typedef float element;
#endif

#define ATTENTION (HEADS * HEAD_DIM)
#define KEY_VALUE (KV_HEADS * HEAD_DIM)
#define QKV (ATTENTION + 2 * KEY_VALUE)  // the width of a row of queries, keys and values
#define GROUP (HEADS / KV_HEADS)         // heads of queries that share a head of keys and values

// Consecutive elements, moved with one or two 16-byte accesses.
template <class T, int N = VECTOR>
struct alignas(sizeof(T) * N) Pack {
    T at[N];
};
template <int N = VECTOR, class T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
    return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ __forceinline__ float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// The sum over a block of at most 1024 threads, the same in each of them.
__device__ __forceinline__ float block_sum(float x) {
    __shared__ float warps[32];
    x = warp_sum(x);
    __syncthreads();  // the sum before this one has been read
    if (thread() % 32 == 0) warps[thread() / 32] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < threads() / 32; i++) sum += warps[i];
    return sum;
}
__device__ __forceinline__ float block_max(float x) {
    __shared__ float warps[32];
    x = warp_max(x);
    __syncthreads();
    if (thread() % 32 == 0) warps[thread() / 32] = x;
    __syncthreads();
    float largest = warps[0];
    for (int i = 1; i < threads() / 32; i++) largest = fmaxf(largest, warps[i]);
    return largest;
}

// The sum over a block of 256 threads in f64, valid in thread 0.
__device__ __forceinline__ double block_sum_f64(double x) {
    __shared__ double sums[256];
    sums[thread()] = x;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (thread() < half) sums[thread()] += sums[thread() + half];
        __syncthreads();
    }
    return sums[0];
}
