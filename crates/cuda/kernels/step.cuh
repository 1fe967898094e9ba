// Numbers that differ from step to step. Kernels read them from memory, so that each step consists of the same launches.
struct StepNumbers {
    double clip_norm;  // 0: no clipping
    float scale;       // factor of each position's gradient: 1 / counted targets of the batch
    float keep;        // 1 - rate · weight decay
    float rate;        // rate / (1 - beta1^step)
    float root;        // 1 / sqrt(1 - beta2^step)
    float beta1, fresh1, beta2, fresh2;  // fresh = 1 - beta
    float epsilon;
    float padding;
};
