// Rotary position embedding (arXiv:2104.09864), the rotate-half form of Hugging Face's Llama.

#define HALF (HEAD_DIM / 2)
#define TURNED (HALF % VECTOR == 0 ? VECTOR : 1)  // pairs that a thread rotates at once

// Rotates queries and keys in place: qkv (rows, (H + 2 · Hkv) · Dh), cosines and sines (T, Dh / 2); row r is position r % T.
// `sign` -1 rotates back, which is the gradient. One block per row.
extern "C" __global__ void rope(element* qkv, const float* cosines, const float* sines, int time, float sign) {
    element* row = qkv + (size_t)blockIdx.x * QKV;
    size_t position = (size_t)(blockIdx.x % time) * HALF;
    for (int i = thread() * TURNED; i < (HEADS + KV_HEADS) * HALF; i += threads() * TURNED) {
        element* at = row + i / HALF * HEAD_DIM + i % HALF;
        Pack<element, TURNED> low = load<TURNED>(at), high = load<TURNED>(at + HALF);
        Pack<float, TURNED> cosine = load<TURNED>(cosines + position + i % HALF);
        Pack<float, TURNED> sine = load<TURNED>(sines + position + i % HALF);
        for (int e = 0; e < TURNED; e++) {
            float a = to_float(low.at[e]), b = to_float(high.at[e]), c = cosine.at[e], s = sign * sine.at[e];
            from_float(low.at[e], a * c - b * s);
            from_float(high.at[e], b * c + a * s);
        }
        store(at, low);
        store(at + HALF, high);
    }
}
