// The rows of the embedding for tokens, and their gradient.

// x (rows, D) = weight[tokens]. One block per row.
extern "C" __global__ void embedding_forward(float* x, const float* weight, const unsigned* tokens) {
    const float* from = weight + (size_t)tokens[blockIdx.x] * WIDTH;
    float* to = x + (size_t)blockIdx.x * WIDTH;
    for (int i = thread() * VECTOR; i < WIDTH; i += threads() * VECTOR) store(to + i, load(from + i));
}

// dweight[token] += the sum of dx over the token's positions. `order` holds the positions sorted by token, `starts`
// where each token that occurs begins in it. One block per such token, so that no two write the same row and the
// positions are added in their order; blocks past the last have an empty range.
extern "C" __global__ void embedding_backward(float* dweight, const float* dx, const unsigned* tokens,
                                              const unsigned* order, const unsigned* starts) {
    unsigned first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    if (first == end) return;
    float* to = dweight + (size_t)tokens[order[first]] * WIDTH;
    for (int i = thread() * VECTOR; i < WIDTH; i += threads() * VECTOR) {
        Pack<float> sum = load(to + i);
#pragma unroll 4
        for (unsigned at = first; at < end; at++) {
            Pack<float> row = load(dx + (size_t)order[at] * WIDTH + i);
            for (int e = 0; e < VECTOR; e++) sum.at[e] += row.at[e];
        }
        store(to + i, sum);
    }
}
