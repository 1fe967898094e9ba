// AdamW (arXiv:1711.05101) over all parameters in one pass, with PyTorch's order of operations.

// Consecutive parameters that weight decay treats alike.
struct Segment {
    unsigned long long first;
    unsigned length;
    unsigned decays;
};

// One block per segment. `copy` gets the new parameters as bf16 unless it is null. Nothing changes if the loss
// (report[0]) or the squared gradient norm (report[1]) is not finite; report[2] scales the gradient.
extern "C" __global__ void adamw(float* parameters, float* first, float* second, bf16* copy, const float* gradient,
                                 const Segment* segments, const double* report, const StepNumbers* numbers) {
    if (report[0] - report[0] != 0 || report[1] - report[1] != 0) return;
    Segment segment = segments[blockIdx.x];
    StepNumbers step = *numbers;
    float scale = (float)report[2];
    if (!segment.decays) step.keep = 1;
#pragma unroll 4
    for (unsigned at = thread(); at < segment.length; at += threads()) {
        size_t i = segment.first + at;
        float g = gradient[i] * scale;
        float m = step.beta1 * first[i] + step.fresh1 * g;
        float v = step.beta2 * second[i] + step.fresh2 * g * g;
        float p = parameters[i] * step.keep - step.rate * m / (sqrtf(v) * step.root + step.epsilon);
        first[i] = m;
        second[i] = v;
        parameters[i] = p;
        if (copy) from_float(copy[i], p);
    }
}
