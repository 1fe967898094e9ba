// Root-mean-square normalisation (arXiv:1910.07467): y = x / sqrt(mean(x²) + epsilon) · weight.

// x (rows, D) f32 → y (rows, D). One warp per row.
extern "C" __global__ void rms_norm_forward(element* y, const float* x, const float* weight, float epsilon, int rows) {
    int row = blockIdx.x * (threads() / 32) + thread() / 32, lane = thread() % 32;
    if (row >= rows) return;
    x += (size_t)row * WIDTH;
    y += (size_t)row * WIDTH;
    float squares = 0;
    for (int i = lane * VECTOR; i < WIDTH; i += 32 * VECTOR) {
        Pack<float> a = load(x + i);
        for (int e = 0; e < VECTOR; e++) squares += a.at[e] * a.at[e];
    }
    float scale = 1.0f / sqrtf(warp_sum(squares) / WIDTH + epsilon);
    for (int i = lane * VECTOR; i < WIDTH; i += 32 * VECTOR) {
        Pack<float> a = load(x + i), w = load(weight + i);
        Pack<element> b;
        for (int e = 0; e < VECTOR; e++) from_float(b.at[e], a.at[e] * scale * w.at[e]);
        store(y + i, b);
    }
}

// Threads of a backward block, and the packs of a row that each of them owns.
#define NORM_THREADS 128
#define NORM_PACKS ((WIDTH + NORM_THREADS * VECTOR - 1) / (NORM_THREADS * VECTOR))

// The gradient of the input, added to that of the residual stream: dx += …; with `residual` 0 it is dx = …. A copy of
// type `element` goes to `copy` unless it is null. Each block has `group` rows and writes its part of the weight's
// gradient to partial[block] (D).
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    rms_norm_backward(float* dx, element* copy, float* partial, const element* dy, const float* x, const float* weight,
                      float epsilon, int rows, int group, int residual) {
    Pack<float> dw[NORM_PACKS], w[NORM_PACKS];
#pragma unroll
    for (int p = 0; p < NORM_PACKS; p++) {
        int i = (p * NORM_THREADS + thread()) * VECTOR;
        for (int e = 0; e < VECTOR; e++) dw[p].at[e] = 0;
        if (i < WIDTH) w[p] = load(weight + i);
    }
    int first = blockIdx.x * group, end = min(first + group, rows);
    for (int row = first; row < end; row++) {
        size_t at = (size_t)row * WIDTH;
        float squares = 0, pull = 0;
#pragma unroll
        for (int p = 0; p < NORM_PACKS; p++) {
            int i = (p * NORM_THREADS + thread()) * VECTOR;
            if (i >= WIDTH) continue;
            Pack<float> a = load(x + at + i);
            Pack<element> d = load(dy + at + i);
            for (int e = 0; e < VECTOR; e++) {
                squares += a.at[e] * a.at[e];
                pull += to_float(d.at[e]) * w[p].at[e] * a.at[e];
            }
        }
        float scale = 1.0f / sqrtf(block_sum(squares) / WIDTH + epsilon);
        pull = block_sum(pull) * scale * scale * scale / WIDTH;
#pragma unroll
        for (int p = 0; p < NORM_PACKS; p++) {
            int i = (p * NORM_THREADS + thread()) * VECTOR;
            if (i >= WIDTH) continue;
            Pack<float> a = load(x + at + i), g;
            Pack<element> d = load(dy + at + i), c;
            if (residual) g = load(dx + at + i);
            for (int e = 0; e < VECTOR; e++) {
                float own = to_float(d.at[e]);
                dw[p].at[e] += own * a.at[e] * scale;
                g.at[e] = (residual ? g.at[e] : 0) + own * w[p].at[e] * scale - a.at[e] * pull;
                from_float(c.at[e], g.at[e]);
            }
            store(dx + at + i, g);
            if (copy) store(copy + at + i, c);
        }
    }
#pragma unroll
    for (int p = 0; p < NORM_PACKS; p++) {
        int i = (p * NORM_THREADS + thread()) * VECTOR;
        if (i < WIDTH) store(partial + (size_t)blockIdx.x * WIDTH + i, dw[p]);
    }
}

// dweight (D) = or += the sum of partial (groups, D) over the groups. 256 threads: 32 columns, 8 interleaved sums each.
extern "C" __global__ void rms_norm_weight_gradient(float* dweight, const float* partial, int groups, int accumulate) {
    __shared__ float sums[8][32];
    int lane = thread() % 32, part = thread() / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < WIDTH) {
        for (int g = part; g < groups; g += 8) sum += partial[(size_t)g * WIDTH + column];
    }
    sums[part][lane] = sum;
    __syncthreads();
    if (part > 0 || column >= WIDTH) return;
    sum = accumulate ? dweight[column] : 0;
    for (int i = 0; i < 8; i++) sum += sums[i][lane];
    dweight[column] = sum;
}
