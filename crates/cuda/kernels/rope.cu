// Rotary position embedding (arXiv:2104.09864), the rotate-half form of Hugging Face's Llama.

// Turns queries and keys in place: qkv (rows, 3 · H · Dh), cosines and sines (T, Dh / 2); row r is position r % T.
// `sign` -1 turns back, which is the gradient. One block per row.
extern "C" __global__ void rope(element* qkv, const float* cosines, const float* sines, int time, float sign) {
    const int half = HEAD_DIM / 2;
    element* row = qkv + (size_t)blockIdx.x * QKV;
    const float* cosine = cosines + (size_t)(blockIdx.x % time) * half;
    const float* sine = sines + (size_t)(blockIdx.x % time) * half;
    for (int i = thread(); i < 2 * HEADS * half; i += threads()) {
        int j = i % half;
        element* low = row + i / half * HEAD_DIM + j;
        element* high = low + half;
        float a = to_float(*low), b = to_float(*high), c = cosine[j], s = sign * sine[j];
        from_float(*low, a * c - b * s);
        from_float(*high, b * c + a * s);
    }
}
