// The functions of kernels/primitives.cuh for the host. The threads of a block are fibers: one runs at a time, and it
// yields where threads wait for each other. Shared memory is static memory, because blocks run one after another.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define INFINITE HUGE_VALF

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

// The fibers (emulator.cpp).
void wait_block();
void wait_warp();
struct Exchange;
Exchange& exchange();  // values that the lanes of this thread's warp exchange; a new object after each use

using std::max;
using std::min;

typedef unsigned short bf16;

inline int thread() { return threadIdx.x; }
inline int threads() { return blockDim.x; }
inline void __syncthreads() { wait_block(); }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
inline void from_float(float& y, float x) { y = x; }
inline void from_float(bf16& y, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    y = x != x ? (bits >> 16 | 0x40) : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned pack_bf16(float low, float high) {
    bf16 a, b;
    from_float(a, low);
    from_float(b, high);
    return (unsigned)b << 16 | a;
}
inline float exp2_fast(float x) { return x < -126 ? 0 : exp2f(x); }

struct Lane {
    float value;
    const bf16* row;
    unsigned a[4], b[2];
};
struct Exchange {
    Lane lanes[32];
};

inline float shuffle(float x, int lane) {
    Exchange& warp = exchange();
    warp.lanes[thread() % 32].value = x;
    wait_warp();
    return warp.lanes[lane].value;
}
inline float shuffle_xor(float x, int mask) { return shuffle(x, thread() % 32 ^ mask); }

inline void ldmatrix_with(unsigned (&y)[4], const bf16* row, bool transposed) {
    if ((uintptr_t)row % 16) fprintf(stderr, "ldmatrix: a row is not aligned to 16 bytes\n"), abort();
    Exchange& warp = exchange();
    int lane = thread() % 32;
    warp.lanes[lane].row = row;
    wait_warp();
    for (int m = 0; m < 4; m++) {
        bf16 low, high;
        if (transposed) {
            low = warp.lanes[m * 8 + lane % 4 * 2].row[lane / 4];
            high = warp.lanes[m * 8 + lane % 4 * 2 + 1].row[lane / 4];
        } else {
            low = warp.lanes[m * 8 + lane / 4].row[lane % 4 * 2];
            high = warp.lanes[m * 8 + lane / 4].row[lane % 4 * 2 + 1];
        }
        y[m] = (unsigned)high << 16 | low;
    }
}
inline void ldmatrix(unsigned (&y)[4], const bf16* row) { ldmatrix_with(y, row, false); }
inline void ldmatrix_transposed(unsigned (&y)[4], const bf16* row) { ldmatrix_with(y, row, true); }

inline float half_of(unsigned pair, int i) { return to_float((bf16)(pair >> 16 * i)); }

// The fragments of mma.m16n8k16 as the PTX manual lays them out.
inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    Exchange& warp = exchange();
    int lane = thread() % 32;
    memcpy(warp.lanes[lane].a, a, sizeof a);
    warp.lanes[lane].b[0] = b0;
    warp.lanes[lane].b[1] = b1;
    wait_warp();
    for (int e = 0; e < 4; e++) {
        int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            const Lane& left = warp.lanes[row % 8 * 4 + k % 8 / 2];
            const Lane& right = warp.lanes[column * 4 + k % 8 / 2];
            sum += half_of(left.a[row / 8 + k / 8 * 2], k % 2) * half_of(right.b[k / 8], k % 2);
        }
        c[e] += sum;
    }
}

// Asynchronous copies happen either at once, which shows a missing barrier before them, or not before the wait for
// them, which shows a missing wait.
bool copies_are_late();
struct Copy {
    void* to;
    const void* from;
    int size;
    bool valid;
};
struct Copies {
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};
Copies& copies();  // of this thread

inline void make(const Copy& copy) {
    copy.valid ? (void)memcpy(copy.to, copy.from, copy.size) : (void)memset(copy.to, 0, copy.size);
}
inline void copy_async(void* to, const void* from, int size, bool valid) {
    if ((uintptr_t)to % size || (uintptr_t)from % size) fprintf(stderr, "cp.async: not aligned\n"), abort();
    Copy copy = {to, from, size, valid};
    copies_are_late() ? copies().open.push_back(copy) : make(copy);
}
inline void copy_async_16(void* to, const void* from, bool valid) { copy_async(to, from, 16, valid); }
inline void copy_async_4(void* to, const void* from, bool valid) { copy_async(to, from, 4, valid); }
inline void copy_commit() {
    copies().groups.push_back(std::move(copies().open));
    copies().open.clear();
}
template <int STILL_RUNNING>
inline void copy_wait() {
    while (copies().groups.size() > STILL_RUNNING) {
        for (const Copy& copy : copies().groups.front()) make(copy);
        copies().groups.pop_front();
    }
}
