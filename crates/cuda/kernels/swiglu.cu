// SwiGLU (arXiv:2002.05202): y = gate · sigmoid(gate) · up.

// gate_up (rows, 2F), the gates first → y (rows, F). One block per row.
extern "C" __global__ void swiglu_forward(element* y, const element* gate_up) {
    const element* gate = gate_up + (size_t)blockIdx.x * 2 * FFN;
    y += (size_t)blockIdx.x * FFN;
    for (int i = thread() * VECTOR; i < FFN; i += threads() * VECTOR) {
        Pack<element> g = load(gate + i), u = load(gate + FFN + i), r;
        for (int e = 0; e < VECTOR; e++) {
            float a = to_float(g.at[e]), sigmoid = 1.0f / (1.0f + expf(-a));
            from_float(r.at[e], a * sigmoid * to_float(u.at[e]));
        }
        store(y + i, r);
    }
}

// In place: gate_up becomes its own gradient, and dy (rows, F) becomes y again, for the gradient of the down
// projection.
extern "C" __global__ void swiglu_backward(element* gate_up, element* dy) {
    element* gate = gate_up + (size_t)blockIdx.x * 2 * FFN;
    dy += (size_t)blockIdx.x * FFN;
    for (int i = thread() * VECTOR; i < FFN; i += threads() * VECTOR) {
        Pack<element> g = load(gate + i), u = load(gate + FFN + i), d = load(dy + i);
        for (int e = 0; e < VECTOR; e++) {
            float a = to_float(g.at[e]), b = to_float(u.at[e]), grad = to_float(d.at[e]);
            float sigmoid = 1.0f / (1.0f + expf(-a)), silu = a * sigmoid;
            from_float(d.at[e], silu * b);
            from_float(u.at[e], grad * silu);
            from_float(g.at[e], grad * b * sigmoid * (1.0f + a - silu));
        }
        store(gate + i, g);
        store(gate + FFN + i, u);
        store(dy + i, d);
    }
}
