// The router's features (arXiv:2403.10616 §2.4).

// features (B, D) = the mean of x (B, T, D) over each row's first lengths[b] positions, in f64. One block per row.
extern "C" __global__ void mean(float* features, const float* x, const unsigned* lengths, int time) {
    unsigned length = lengths[blockIdx.x];
    x += (size_t)blockIdx.x * time * WIDTH;
    for (int i = thread(); i < WIDTH; i += threads()) {
        double sum = 0;
        for (unsigned t = 0; t < length; t++) sum += x[(size_t)t * WIDTH + i];
        features[(size_t)blockIdx.x * WIDTH + i] = (float)(sum / length);
    }
}
