// Causal attention on the tensor cores, in bf16, for heads of a multiple of 16 elements up to 128. The buffers are
// those of attention.cu.
//
// A block has 4 warps. Each warp holds 16 rows (or 32) as fragments of the left factor in registers. It goes through
// the rows of the other side in tiles of shared memory, and the next tile arrives in the background during the work on
// the current tile. The scores stay in registers, where they become the left factor of the next product
// (FlashAttention-2, arXiv:2307.08691).

#if TENSOR_ATTENTION

#define WARPS 4
#define TILE (HEAD_DIM <= 64 ? 64 : 32)    // rows of a tile
#define LENGTH (HEAD_DIM + 8)              // of a row in shared memory: ldmatrix meets every bank once
#define FORWARD_ROWS (HEAD_DIM <= 64 ? 2 : 1)  // 16-row fragments of a warp in the forward kernel
#define STEPS (HEAD_DIM / 16)

// R fragments of the left factor, 16 rows and 16·K elements each; of the result, 16 rows and 8·N elements each.
template <int R, int K>
struct Left {
    unsigned at[R][K][4];
};
template <int R, int N>
struct Result {
    float at[R][N][4];  // lane l: row l / 4, columns l % 4 · 2 and the next; then row l / 4 + 8
};

template <int R, int N>
__device__ __forceinline__ void zero(Result<R, N>& x) {
    for (int r = 0; r < R; r++) {
        for (int n = 0; n < N; n++) {
            for (int e = 0; e < 4; e++) x.at[r][n][e] = 0;
        }
    }
}

// result += left · tileᵀ, the tile being (16·PAIRS, 16·K).
template <int R, int K, int PAIRS>
__device__ __forceinline__ void multiply_transposed(Result<R, 2 * PAIRS>& result, const Left<R, K>& left,
                                                    const bf16 (*tile)[LENGTH]) {
    int lane = thread() % 32, row = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            unsigned b[4];
            ldmatrix(b, &tile[n * 16 + row][k * 16 + column]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                mma(result.at[r][2 * n], left.at[r][k], b[0], b[1]);
                mma(result.at[r][2 * n + 1], left.at[r][k], b[2], b[3]);
            }
        }
    }
}

// result += left · tile, the tile being (16·K, 16·PAIRS).
template <int R, int K, int PAIRS>
__device__ __forceinline__ void multiply(Result<R, 2 * PAIRS>& result, const Left<R, K>& left,
                                         const bf16 (*tile)[LENGTH]) {
    int lane = thread() % 32, row = lane % 16, column = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            unsigned b[4];
            ldmatrix_transposed(b, &tile[k * 16 + row][n * 16 + column]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                mma(result.at[r][2 * n], left.at[r][k], b[0], b[1]);
                mma(result.at[r][2 * n + 1], left.at[r][k], b[2], b[3]);
            }
        }
    }
}

// Converts a result to the left factor of another product: the lanes hold the same places of both.
template <int R, int K>
__device__ __forceinline__ Left<R, K> as_left(const Result<R, 2 * K>& x) {
    Left<R, K> y;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            y.at[r][k][0] = pack_bf16(x.at[r][2 * k][0], x.at[r][2 * k][1]);
            y.at[r][k][1] = pack_bf16(x.at[r][2 * k][2], x.at[r][2 * k][3]);
            y.at[r][k][2] = pack_bf16(x.at[r][2 * k + 1][0], x.at[r][2 * k + 1][1]);
            y.at[r][k][3] = pack_bf16(x.at[r][2 * k + 1][2], x.at[r][2 * k + 1][3]);
        }
    }
    return y;
}

// Loads rows from `first` as a left factor, zeros past the last.
template <int R>
__device__ __forceinline__ Left<R, STEPS> load_left(const bf16* from, int stride, int first, int time) {
    Left<R, STEPS> y;
    int lane = thread() % 32;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int part = 0; part < 4; part++) {
            int row = first + r * 16 + lane / 4 + part % 2 * 8, column = lane % 4 * 2 + part / 2 * 8;
            const bf16* at = from + (size_t)row * stride + column;
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                y.at[r][k][part] = row < time ? *reinterpret_cast<const unsigned*>(at + k * 16) : 0;
            }
        }
    }
    return y;
}

// Writes a fragment's rows below `time`, times `scale`: row / row + 8 of the lane have the factors scale[0 / 1].
__device__ __forceinline__ void store_rows(bf16* to, int stride, int first, int time,
                                           const float (&x)[2 * STEPS][4], const float (&scale)[2]) {
    int lane = thread() % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + lane / 4 + half * 8;
        if (row >= time) continue;
        bf16* at = to + (size_t)row * stride + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 2 * STEPS; n++) {
            *reinterpret_cast<unsigned*>(at + n * 8) =
                pack_bf16(x[n][2 * half] * scale[half], x[n][2 * half + 1] * scale[half]);
        }
    }
}

// Starts the copy of a tile.
__device__ __forceinline__ void fetch_tile(bf16 (*tile)[LENGTH], const bf16* from, int stride, int first, int time) {
    for (int i = thread(); i < TILE * HEAD_DIM / 8; i += WARPS * 32) {
        int row = i / (HEAD_DIM / 8), column = i % (HEAD_DIM / 8) * 8;
        bool valid = first + row < time;
        copy_async_16(&tile[row][column], from + (valid ? (size_t)(first + row) * stride + column : 0), valid);
    }
}

// Two tiles, each twice: the next copy arrives during the work on the current copy.
struct Tiles {
    alignas(16) bf16 a[2][TILE][LENGTH];
    alignas(16) bf16 b[2][TILE][LENGTH];
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_forward(bf16* y, float* log_sums, const bf16* qkv, int time) {
    constexpr int R = FORWARD_ROWS;
    __shared__ Tiles tiles;
    Head head = block_head(time);
    const bf16 *q = qkv + head.query, *k = qkv + head.key, *v = qkv + head.value;
    // The last queries, which have the most keys, go first.
    int first = (gridDim.x - 1 - blockIdx.x) * WARPS * 16 * R, own = first + thread() / 32 * 16 * R, lane = thread() % 32;
    int end = min(first + WARPS * 16 * R, time);
    const float scale = SCORE_SCALE * LOG2_E;
    Left<R, STEPS> queries = load_left<R>(q, QKV, own, time);
    Result<R, 2 * STEPS> sums;
    float largest[R][2], sum[R][2];
    zero(sums);
    for (int r = 0; r < R; r++) largest[r][0] = largest[r][1] = -INFINITE, sum[r][0] = sum[r][1] = 0;

    fetch_tile(tiles.a[0], k, QKV, 0, time);
    fetch_tile(tiles.b[0], v, QKV, 0, time);
    copy_commit();
    for (int keys = 0, stage = 0; keys < end; keys += TILE, stage ^= 1) {
        if (keys + TILE < end) {
            fetch_tile(tiles.a[stage ^ 1], k, QKV, keys + TILE, time);
            fetch_tile(tiles.b[stage ^ 1], v, QKV, keys + TILE, time);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (keys < own + 16 * R) {
            Result<R, TILE / 8> scores;
            zero(scores);
            multiply_transposed<R, STEPS, TILE / 16>(scores, queries, tiles.a[stage]);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int row = own + r * 16 + lane / 4;
                bool masked = keys + TILE > own + r * 16;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float most = largest[r][half];
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                        for (int e = 2 * half; e < 2 * half + 2; e++) {
                            float& score = scores.at[r][n][e];
                            if (masked && keys + n * 8 + lane % 4 * 2 + e % 2 > row + half * 8) score = -INFINITE;
                            most = fmaxf(most, score);
                        }
                    }
                    most = fmaxf(most, shuffle_xor(most, 1));
                    most = fmaxf(most, shuffle_xor(most, 2));
                    // Every query sees key 0, so from the first tile on the maximum is finite.
                    float correction = exp2_fast((largest[r][half] - most) * scale), own_sum = 0;
#pragma unroll
                    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                        for (int e = 2 * half; e < 2 * half + 2; e++) {
                            float& score = scores.at[r][n][e];
                            score = exp2_fast(score * scale - most * scale);
                            own_sum += score;
                        }
                    }
#pragma unroll
                    for (int n = 0; n < 2 * STEPS; n++) {
                        sums.at[r][n][2 * half] *= correction;
                        sums.at[r][n][2 * half + 1] *= correction;
                    }
                    sum[r][half] = sum[r][half] * correction + own_sum;
                    largest[r][half] = most;
                }
            }
            multiply<R, TILE / 16, STEPS>(sums, as_left<R, TILE / 16>(scores), tiles.b[stage]);
        }
        __syncthreads();  // before the tile is overwritten
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[r][half];
            total += shuffle_xor(total, 1);
            total += shuffle_xor(total, 2);
            inverse[half] = 1 / total;
            int row = own + r * 16 + lane / 4 + half * 8;
            if (lane % 4 == 0 && row < time) {
                log_sums[head.rows + row] = largest[r][half] * scale + log2f(total);
            }
        }
        store_rows(y + head.y, ATTENTION, own + r * 16, time, sums.at[r], inverse);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_query_gradient(bf16* dqkv, const bf16* qkv, const bf16* dy, const float* log_sums, const float* delta,
                             int time) {
    __shared__ Tiles tiles;
    Head head = block_head(time);
    const bf16 *q = qkv + head.query, *k = qkv + head.key, *v = qkv + head.value;
    int first = (gridDim.x - 1 - blockIdx.x) * WARPS * 16, own = first + thread() / 32 * 16, lane = thread() % 32;
    int end = min(first + WARPS * 16, time);
    const float scale = SCORE_SCALE * LOG2_E;
    Left<1, STEPS> queries = load_left<1>(q, QKV, own, time);
    Left<1, STEPS> slopes = load_left<1>(dy + head.y, ATTENTION, own, time);
    float log_sum[2], pull[2];
    for (int half = 0; half < 2; half++) {
        int row = own + lane / 4 + half * 8;
        log_sum[half] = row < time ? log_sums[head.rows + row] : 0;
        pull[half] = row < time ? delta[head.rows + row] : 0;
    }
    Result<1, 2 * STEPS> sums;
    zero(sums);

    fetch_tile(tiles.a[0], k, QKV, 0, time);
    fetch_tile(tiles.b[0], v, QKV, 0, time);
    copy_commit();
    for (int keys = 0, stage = 0; keys < end; keys += TILE, stage ^= 1) {
        if (keys + TILE < end) {
            fetch_tile(tiles.a[stage ^ 1], k, QKV, keys + TILE, time);
            fetch_tile(tiles.b[stage ^ 1], v, QKV, keys + TILE, time);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (keys < own + 16) {
            Result<1, TILE / 8> scores, gradients;
            zero(scores);
            zero(gradients);
            multiply_transposed<1, STEPS, TILE / 16>(scores, queries, tiles.a[stage]);
            multiply_transposed<1, STEPS, TILE / 16>(gradients, slopes, tiles.b[stage]);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float& score = scores.at[0][n][e];
                    bool seen = keys + n * 8 + lane % 4 * 2 + e % 2 <= own + lane / 4 + e / 2 * 8;
                    score = seen ? exp2_fast(score * scale - log_sum[e / 2]) * (gradients.at[0][n][e] - pull[e / 2]) : 0;
                }
            }
            multiply<1, TILE / 16, STEPS>(sums, as_left<1, TILE / 16>(scores), tiles.a[stage]);
        }
        __syncthreads();
    }
    const float scales[2] = {SCORE_SCALE, SCORE_SCALE};
    store_rows(dqkv + head.query, QKV, own, time, sums.at[0], scales);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_key_value_gradient(bf16* dqkv, const bf16* qkv, const bf16* dy, const float* log_sums,
                                 const float* delta, int time) {
    __shared__ Tiles tiles;
    __shared__ float numbers[2][2][TILE];  // log_sums and delta of a tile's queries
    Head head = group_head(0, time);
    const bf16 *k = qkv + head.key, *v = qkv + head.value;
    int first = blockIdx.x * WARPS * 16, own = first + thread() / 32 * 16, lane = thread() % 32;
    const float scale = SCORE_SCALE * LOG2_E;
    Left<1, STEPS> keys = load_left<1>(k, QKV, own, time);
    Left<1, STEPS> values = load_left<1>(v, QKV, own, time);
    Result<1, 2 * STEPS> key_sums, value_sums;
    zero(key_sums);
    zero(value_sums);

    // The heads of the group follow each other as one sequence of tiles: keys see the same queries of each head.
    const int start = first / TILE * TILE, tiles_of_head = (time - start + TILE - 1) / TILE;
    auto fetch = [&](int stage, int step) {
        Head head = group_head(step / tiles_of_head, time);
        int queries = start + step % tiles_of_head * TILE;
        fetch_tile(tiles.a[stage], qkv + head.query, QKV, queries, time);
        fetch_tile(tiles.b[stage], dy + head.y, ATTENTION, queries, time);
        if (thread() < TILE) {
            bool valid = queries + thread() < time;
            size_t at = head.rows + (valid ? queries + thread() : 0);
            copy_async_4(&numbers[stage][0][thread()], log_sums + at, valid);
            copy_async_4(&numbers[stage][1][thread()], delta + at, valid);
        }
    };
    fetch(0, 0);
    copy_commit();
    for (int step = 0, stage = 0; step < GROUP * tiles_of_head; step++, stage ^= 1) {
        int queries = start + step % tiles_of_head * TILE;
        if (step + 1 < GROUP * tiles_of_head) fetch(stage ^ 1, step + 1);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (queries + TILE > own) {
            Result<1, TILE / 8> scores, gradients;
            zero(scores);
            zero(gradients);
            multiply_transposed<1, STEPS, TILE / 16>(scores, keys, tiles.a[stage]);
            multiply_transposed<1, STEPS, TILE / 16>(gradients, values, tiles.b[stage]);
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int column = n * 8 + lane % 4 * 2 + e % 2, query = queries + column;
                    float& score = scores.at[0][n][e];
                    bool seen = query < time && own + lane / 4 + e / 2 * 8 <= query;
                    score = seen ? exp2_fast(score * scale - numbers[stage][0][column]) : 0;
                    gradients.at[0][n][e] = score * (gradients.at[0][n][e] - numbers[stage][1][column]);
                }
            }
            multiply<1, TILE / 16, STEPS>(value_sums, as_left<1, TILE / 16>(scores), tiles.b[stage]);
            multiply<1, TILE / 16, STEPS>(key_sums, as_left<1, TILE / 16>(gradients), tiles.a[stage]);
        }
        __syncthreads();
    }
    const float scales[2] = {SCORE_SCALE, SCORE_SCALE}, ones[2] = {1, 1};
    store_rows(dqkv + head.key, QKV, own, time, key_sums.at[0], scales);
    store_rows(dqkv + head.value, QKV, own, time, value_sums.at[0], ones);
}

#endif
