// Cross entropy of the next token, for the rows of a chunk whose logits are in memory.

#define IGNORE 0xffffffffu  // a target that does not count

// losses[row] = -ln p(target) in nats, 0 where the target is IGNORE. The gradient of the logits (rows, V) goes to `gradient`:
// (p - one-hot) · the step's scale; in f32 that is the logits' own memory. Without `numbers` there is none. One block per row.
extern "C" __global__ void cross_entropy(element* gradient, const float* logits, float* losses,
                                         const unsigned* targets, const StepNumbers* numbers) {
    bool wanted = numbers != nullptr;
    float scale = wanted ? numbers->scale : 0;
    const float* row = logits + (size_t)blockIdx.x * VOCABULARY;
    element* to = gradient + (size_t)blockIdx.x * VOCABULARY;
    unsigned target = targets[blockIdx.x];
    if (target == IGNORE) {
        if (thread() == 0) losses[blockIdx.x] = 0;
        Pack<element> zero;
        for (int e = 0; e < VECTOR; e++) from_float(zero.at[e], 0);
        for (int i = thread() * VECTOR; wanted && i < VOCABULARY; i += threads() * VECTOR) store(to + i, zero);
        return;
    }
    // The largest logit and the sum so far; a larger logit corrects both.
    float largest = -INFINITE, sum = 0;
    for (int i = thread() * VECTOR; i < VOCABULARY; i += threads() * VECTOR) {
        Pack<float> a = load(row + i);
        float most = largest;
        for (int e = 0; e < VECTOR; e++) most = fmaxf(most, a.at[e]);
        if (most > largest) sum *= expf(largest - most), largest = most;
        for (int e = 0; e < VECTOR; e++) sum += expf(a.at[e] - largest);
    }
    float most = block_max(largest);
    // A thread without logits has the sum 0 and the maximum -infinity.
    sum = block_sum(sum > 0 ? sum * expf(largest - most) : sum);
    float log_sum = most + logf(sum), of_target = row[target];
    if (thread() == 0) losses[blockIdx.x] = log_sum - of_target;
    if (!wanted) return;
    __syncthreads();  // the target's logit has been read
    for (int i = thread() * VECTOR; i < VOCABULARY; i += threads() * VECTOR) {
        Pack<float> a = load(row + i);
        Pack<element> b;
        for (int e = 0; e < VECTOR; e++) {
            from_float(b.at[e], (expf(a.at[e] - log_sum) - (i + e == target ? 1.0f : 0.0f)) * scale);
        }
        store(to + i, b);
    }
}

// report[0] = the sum of the losses in f64. One block of 256 threads.
extern "C" __global__ void sum_losses(double* report, const float* losses, int rows, int accumulate) {
    double sum = 0;
    for (int i = thread(); i < rows; i += 256) sum += losses[i];
    sum = block_sum_f64(sum);
    if (thread() == 0) report[0] = (accumulate ? report[0] : 0) + sum;
}
