// The norm of the whole gradient and the factor that clips it (PyTorch's clip_grad_norm_).

#define SQUARES_CHUNK 65536  // numbers that one block adds up

// partial[block] = the sum of the squares of the block's chunk, in f64. 256 threads.
extern "C" __global__ void squared_norm(double* partial, const float* gradient, unsigned long long count) {
    unsigned long long first = (unsigned long long)blockIdx.x * SQUARES_CHUNK;
    unsigned long long end = first + SQUARES_CHUNK < count ? first + SQUARES_CHUNK : count;
    double sum = 0;
    // Four at a time in f32, because some GPUs have few f64 units.
    unsigned long long i = first + thread();
    for (; i + 768 < end; i += 1024) {
        float a = gradient[i], b = gradient[i + 256], c = gradient[i + 512], d = gradient[i + 768];
        sum += (double)((a * a + b * b) + (c * c + d * d));
    }
    for (; i < end; i += 256) sum += (double)gradient[i] * gradient[i];
    sum = block_sum_f64(sum);
    if (thread() == 0) partial[blockIdx.x] = sum;
}

// report[1] = the squared norm, report[2] = the factor for the gradient. One block of 256 threads.
extern "C" __global__ void clip(double* report, const double* partial, int count, const StepNumbers* numbers) {
    double sum = 0;
    for (int i = thread(); i < count; i += 256) sum += partial[i];
    sum = block_sum_f64(sum);
    if (thread() > 0) return;
    double clip_norm = numbers->clip_norm;
    double scale = clip_norm > 0 ? clip_norm / (sqrt(sum) + 1e-6) : 1;
    report[1] = sum;
    report[2] = scale < 1 ? scale : 1;
}
