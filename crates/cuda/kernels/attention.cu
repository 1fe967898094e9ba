// Causal attention, softmax(q · kᵀ / sqrt(Dh)) · v, block by block (arXiv:2205.14135): the T × T scores are never in
// memory. This file has the common parts of all head sizes, and the plain kernels for f32 and for head sizes without
// kernels on the tensor cores; attention_tensor.cu has those for the tensor cores.
//
// qkv (B, T, H + 2 · Hkv, Dh), y (B, T, H, Dh). Heads of queries in groups of H / Hkv share a head of keys and values
// (arXiv:2305.13245). log_sums and delta (B, H, T) are f32; log_sums is the binary logarithm of the sum of the
// exponentials of a query's scaled scores. One kernel computes the gradient of queries and another one the gradients of
// keys and values, and both recompute the scores: no two blocks write the same number, so no sum depends on the order of
// the blocks.

#define LOG2_E 1.4426950408889634f
#define SCORE_SCALE (1.0f / sqrtf((float)HEAD_DIM))

// delta = Σ y · dy over a head, the term of the softmax's gradient (arXiv:2205.14135 §B.2). One warp per row and head.
extern "C" __global__ void attention_delta(float* delta, const element* y, const element* dy, int rows, int time) {
    int item = blockIdx.x * (threads() / 32) + thread() / 32, lane = thread() % 32;
    if (item >= rows * HEADS) return;
    int row = item / HEADS, head = item % HEADS;
    size_t at = (size_t)row * ATTENTION + head * HEAD_DIM;
    float sum = 0;
    for (int i = lane; i < HEAD_DIM; i += 32) sum += to_float(y[at + i]) * to_float(dy[at + i]);
    sum = warp_sum(sum);
    if (lane == 0) delta[((size_t)(row / time) * HEADS + head) * time + row % time] = sum;
}

// Place of a head of queries and of its head of keys and values.
struct Head {
    size_t query;  // of row 0 in qkv
    size_t key;
    size_t value;
    size_t y;     // of row 0 in the result
    size_t rows;  // of row 0 in log_sums and delta
};
__device__ __forceinline__ Head head_at(size_t sequence, size_t head, int time) {
    size_t row = sequence * time * QKV, group = head / GROUP;
    return {row + head * HEAD_DIM, row + ATTENTION + group * HEAD_DIM, row + ATTENTION + KEY_VALUE + group * HEAD_DIM,
            sequence * time * ATTENTION + head * HEAD_DIM, (sequence * HEADS + head) * time};
}

// The head of a block whose grid is (tiles of queries, B · H).
__device__ __forceinline__ Head block_head(int time) { return head_at(blockIdx.y / HEADS, blockIdx.y % HEADS, time); }

// A head of the group of a block whose grid is (tiles of keys, B · Hkv).
__device__ __forceinline__ Head group_head(int member, int time) {
    return head_at(blockIdx.y / KV_HEADS, blockIdx.y % KV_HEADS * GROUP + member, time);
}

#if !TENSOR_ATTENTION

#define PLAIN_WARPS 4
#define PLAIN_ROWS 2                       // rows of a warp
#define PLAIN_BLOCK (PLAIN_WARPS * PLAIN_ROWS)
#define PLAIN_COLUMNS ((HEAD_DIM + 31) / 32)  // elements of a head that a lane adds up

typedef float Tile[32][HEAD_DIM + 1];  // the odd row length spreads a column over the memory banks
typedef float Sums[PLAIN_ROWS][PLAIN_COLUMNS];

__device__ void zero(Sums& sums) {
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) {
#pragma unroll
        for (int c = 0; c < PLAIN_COLUMNS; c++) sums[r][c] = 0;
    }
}

// Copies 32 rows from `first`, zeros past the last; waits until the tile is free, then until it is full.
__device__ void load_tile(Tile& tile, const element* from, int stride, int first, int time) {
    __syncthreads();
    for (int i = thread(); i < 32 * HEAD_DIM; i += threads()) {
        int row = i / HEAD_DIM, column = i % HEAD_DIM;
        tile[row][column] = first + row < time ? to_float(from[(size_t)(first + row) * stride + column]) : 0;
    }
    __syncthreads();
}

// Lane l's product of a row with row l of the tile.
__device__ float row_product(const element* row, const Tile& tile) {
    float sum = 0;
    for (int i = 0; i < HEAD_DIM; i++) sum += to_float(row[i]) * tile[thread() % 32][i];
    return sum;
}

// sums += Σ over the lanes l of weight_l · row l of the tile.
__device__ void add_rows(float (&sums)[PLAIN_COLUMNS], float weight, const Tile& tile) {
    for (int l = 0; l < 32; l++) {
        float of_row = shuffle(weight, l);
#pragma unroll
        for (int c = 0; c < PLAIN_COLUMNS; c++) {
            int column = c * 32 + thread() % 32;
            if (column < HEAD_DIM) sums[c] += of_row * tile[l][column];
        }
    }
}

__device__ void store_sums(element* to, const float (&sums)[PLAIN_COLUMNS], float scale) {
#pragma unroll
    for (int c = 0; c < PLAIN_COLUMNS; c++) {
        int column = c * 32 + thread() % 32;
        if (column < HEAD_DIM) from_float(to[column], sums[c] * scale);
    }
}

// y and log_sums; the running maximum and sum are those of arXiv:1805.02867.
extern "C" __global__ void attention_forward(element* y, float* log_sums, const element* qkv, int time) {
    __shared__ Tile tile;
    Head head = block_head(time);
    const element *q = qkv + head.query, *k = qkv + head.key, *v = qkv + head.value;
    int first = blockIdx.x * PLAIN_BLOCK, own = first + thread() / 32 * PLAIN_ROWS, lane = thread() % 32;
    float largest[PLAIN_ROWS], sum[PLAIN_ROWS], weight[PLAIN_ROWS];
    Sums sums;
    zero(sums);
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) largest[r] = -INFINITE, sum[r] = 0;
    for (int keys = 0; keys < min(first + PLAIN_BLOCK, time); keys += 32) {
        load_tile(tile, k, QKV, keys, time);
#pragma unroll
        for (int r = 0; r < PLAIN_ROWS; r++) {
            int query = min(own + r, time - 1);
            float score = row_product(q + (size_t)query * QKV, tile) * (SCORE_SCALE * LOG2_E);
            bool seen = keys + lane <= query;
            float most = fmaxf(largest[r], warp_max(seen ? score : -INFINITE));
            weight[r] = seen ? exp2f(score - most) : 0;
            float correction = exp2f(largest[r] - most);
            for (int c = 0; c < PLAIN_COLUMNS; c++) sums[r][c] *= correction;
            sum[r] = sum[r] * correction + warp_sum(weight[r]);
            largest[r] = most;
        }
        load_tile(tile, v, QKV, keys, time);
#pragma unroll
        for (int r = 0; r < PLAIN_ROWS; r++) add_rows(sums[r], weight[r], tile);
    }
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) {
        if (own + r >= time) continue;
        store_sums(y + head.y + (size_t)(own + r) * ATTENTION, sums[r], 1 / sum[r]);
        if (lane == 0) log_sums[head.rows + own + r] = largest[r] + log2f(sum[r]);
    }
}

// The queries' part of dqkv.
extern "C" __global__ void attention_query_gradient(element* dqkv, const element* qkv, const element* dy,
                                                    const float* log_sums, const float* delta, int time) {
    __shared__ Tile tile;
    Head head = block_head(time);
    const element *q = qkv + head.query, *k = qkv + head.key, *v = qkv + head.value;
    int first = blockIdx.x * PLAIN_BLOCK, own = first + thread() / 32 * PLAIN_ROWS, lane = thread() % 32;
    float weight[PLAIN_ROWS];
    Sums sums;
    zero(sums);
    for (int keys = 0; keys < min(first + PLAIN_BLOCK, time); keys += 32) {
        load_tile(tile, k, QKV, keys, time);
#pragma unroll
        for (int r = 0; r < PLAIN_ROWS; r++) {
            int query = min(own + r, time - 1);
            float score = row_product(q + (size_t)query * QKV, tile) * (SCORE_SCALE * LOG2_E);
            weight[r] = keys + lane <= query ? exp2f(score - log_sums[head.rows + query]) : 0;
        }
        load_tile(tile, v, QKV, keys, time);
#pragma unroll
        for (int r = 0; r < PLAIN_ROWS; r++) {
            int query = min(own + r, time - 1);
            weight[r] *= row_product(dy + head.y + (size_t)query * ATTENTION, tile) - delta[head.rows + query];
        }
        load_tile(tile, k, QKV, keys, time);
#pragma unroll
        for (int r = 0; r < PLAIN_ROWS; r++) add_rows(sums[r], weight[r], tile);
    }
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) {
        if (own + r < time) store_sums(dqkv + head.query + (size_t)(own + r) * QKV, sums[r], SCORE_SCALE);
    }
}

// The keys' and the values' parts of dqkv, which sum over the heads of the group.
extern "C" __global__ void attention_key_value_gradient(element* dqkv, const element* qkv, const element* dy,
                                                        const float* log_sums, const float* delta, int time) {
    __shared__ Tile tile;
    int first = blockIdx.x * PLAIN_BLOCK, own = first + thread() / 32 * PLAIN_ROWS, lane = thread() % 32;
    float weight[PLAIN_ROWS], slope[PLAIN_ROWS];
    Sums keys, values;
    zero(keys);
    zero(values);
    for (int member = 0; member < GROUP; member++) {
        Head head = group_head(member, time);
        const element *q = qkv + head.query, *k = qkv + head.key, *v = qkv + head.value;
        for (int queries = first / 32 * 32; queries < time; queries += 32) {
            int query = min(queries + lane, time - 1);
            float log_sum = log_sums[head.rows + query], pull = delta[head.rows + query];
            load_tile(tile, q, QKV, queries, time);
#pragma unroll
            for (int r = 0; r < PLAIN_ROWS; r++) {
                int key = min(own + r, time - 1);
                float score = row_product(k + (size_t)key * QKV, tile) * (SCORE_SCALE * LOG2_E);
                bool seen = queries + lane < time && key <= query;
                weight[r] = seen ? exp2f(score - log_sum) : 0;
            }
            load_tile(tile, dy + head.y, ATTENTION, queries, time);
#pragma unroll
            for (int r = 0; r < PLAIN_ROWS; r++) {
                int key = min(own + r, time - 1);
                slope[r] = weight[r] * (row_product(v + (size_t)key * QKV, tile) - pull);
                add_rows(values[r], weight[r], tile);
            }
            load_tile(tile, q, QKV, queries, time);
#pragma unroll
            for (int r = 0; r < PLAIN_ROWS; r++) add_rows(keys[r], slope[r], tile);
        }
    }
    Head head = group_head(0, time);
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) {
        if (own + r >= time) continue;
        element* to = dqkv + (size_t)(own + r) * QKV;
        store_sums(to + head.key, keys[r], SCORE_SCALE);
        store_sums(to + head.value, values[r], 1);
    }
}

#endif
