// Runs the kernels on the host: launch("name", grid, threads, arguments). Compiled by src/host.rs together with the
// kernels' sources (KERNELS) and their constants.

#include "primitives.h"
#include <csetjmp>
#include <ucontext.h>
#include <utility>

#include KERNELS

namespace {

const int MOST_THREADS = 1024;
const size_t STACK = 64 << 10;

// Threads that wait for each other: a warp or a block.
struct Barrier {
    int size = 0, waiting = 0;
    unsigned round = 0;
};

struct Fiber {
    ucontext_t context;  // its start
    jmp_buf place;       // its last wait
    bool began = false;
    std::vector<char> stack;
    bool done = true;
    Barrier* barrier = nullptr;  // the barrier at which it waits
    unsigned round = 0;
    Copies copies;
    int exchanges = 0;
};

Fiber fibers[MOST_THREADS];
Barrier block, warps[MOST_THREADS / 32];
// Two per warp, used in turn: no lane can be two exchanges ahead of another.
Exchange exchanges[MOST_THREADS / 32][2];
jmp_buf scheduler;
int current;
void (*body)(void**);
void** body_arguments;
bool late_copies;

// Jumps instead of swapcontext, because swapcontext calls the kernel of the operating system each time.
void give_way(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler, 1);
}
void resume(Fiber& fiber) {
    if (_setjmp(scheduler) != 0) return;
    if (fiber.began) _longjmp(fiber.place, 1);
    fiber.began = true;
    setcontext(&fiber.context);
}

void wait(Barrier& barrier) {
    Fiber& fiber = fibers[current];
    if (++barrier.waiting == barrier.size) {
        barrier.waiting = 0;
        barrier.round++;
        return;
    }
    fiber.barrier = &barrier;
    fiber.round = barrier.round;
    give_way(fiber);
}

// A barrier no longer waits for a thread that has ended.
void leave(Barrier& barrier) {
    barrier.size--;
    if (barrier.size > 0 && barrier.waiting == barrier.size) {
        barrier.waiting = 0;
        barrier.round++;
    }
}

void run_fiber() {
    body(body_arguments);
    Fiber& fiber = fibers[current];
    fiber.done = true;
    leave(block);
    leave(warps[current / 32]);
    _longjmp(scheduler, 1);
}

void run_block(int threads, bool backwards) {
    block = {threads, 0, 0};
    for (int t = 0; t < threads; t++) {
        if (t % 32 == 0) warps[t / 32] = {min(32, threads - t), 0, 0};
        Fiber& fiber = fibers[t];
        fiber.stack.resize(STACK);
        fiber.done = fiber.began = false;
        fiber.barrier = nullptr;
        fiber.copies = {};
        fiber.exchanges = 0;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
    }
    // Each warp runs as far as it can before the next warp starts, so that a write that is too early shows in the
    // others.
    const int count = (threads + 31) / 32;
    for (int left = threads; left > 0;) {
        bool any = false;
        for (int w = 0; w < count; w++) {
            for (bool ran = true; ran;) {
                ran = false;
                for (int l = 0; l < 32; l++) {
                    int t = (backwards ? count - 1 - w : w) * 32 + (backwards ? 31 - l : l);
                    if (t >= threads) continue;
                    Fiber& fiber = fibers[t];
                    if (fiber.done || (fiber.barrier && fiber.barrier->round == fiber.round)) continue;
                    fiber.barrier = nullptr;
                    current = t;
                    threadIdx.x = t;
                    resume(fiber);
                    any = ran = true;
                    if (fiber.done) left--;
                }
            }
        }
        if (!any) fprintf(stderr, "threads wait for others that never come\n"), abort();
    }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*reinterpret_cast<std::remove_reference_t<A>*>(arguments[I])...);
}
template <auto KERNEL, class... A>
void unpack_as(void (*)(A...), void** arguments) {
    call(KERNEL, arguments, std::index_sequence_for<A...>());
}
template <auto KERNEL>
void unpack(void** arguments) {
    unpack_as<KERNEL>(KERNEL, arguments);
}

struct Named {
    const char* name;
    void (*body)(void**);
};
#define NAMED(kernel) {#kernel, unpack<kernel>}
const Named kernels[] = {
    NAMED(embedding_forward), NAMED(embedding_backward), NAMED(rms_norm_forward), NAMED(rms_norm_backward),
    NAMED(rms_norm_weight_gradient), NAMED(rope), NAMED(swiglu_forward), NAMED(swiglu_backward),
    NAMED(attention_forward), NAMED(attention_delta), NAMED(attention_query_gradient),
    NAMED(attention_key_value_gradient), NAMED(cross_entropy), NAMED(sum_losses), NAMED(squared_norm), NAMED(clip),
    NAMED(adamw), NAMED(mean),
};

}  // namespace

void wait_block() { wait(block); }
void wait_warp() { wait(warps[current / 32]); }
Exchange& exchange() { return exchanges[current / 32][fibers[current].exchanges++ % 2]; }
bool copies_are_late() { return late_copies; }
Copies& copies() { return fibers[current].copies; }

// Threads and blocks run in ascending order, and asynchronous copies happen as late as possible. With `backwards`
// threads and blocks run in descending order, and copies happen at once. If the result of a kernel depends on that, the
// kernel lacks a barrier or a wait. Returns 0, or 1 for an unknown kernel.
extern "C" int launch(const char* name, int width, int height, int threads, void** arguments, int backwards) {
    for (const Named& kernel : kernels) {
        if (strcmp(kernel.name, name)) continue;
        body = kernel.body;
        body_arguments = arguments;
        late_copies = !backwards;
        blockDim = {(unsigned)threads, 1, 1};
        gridDim = {(unsigned)width, (unsigned)height, 1};
        for (int i = 0; i < width * height; i++) {
            int at = backwards ? width * height - 1 - i : i;
            blockIdx = {(unsigned)(at % width), (unsigned)(at / width), 0};
            run_block(threads, backwards);
        }
        return 0;
    }
    return 1;
}
