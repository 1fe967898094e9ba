#!/usr/bin/env python3
"""Measures the share of a training step that reading its batch takes.

    scripts/bench-reading.py --dipaco target/release/dipaco --reader target/release/examples/read_speed TOKENS.h5

Reads random sequences of a token file as a worker does (`read_speed`, an example of dipaco-shards), for the first time
with the file out of the page cache and again, and measures the training step of the smallest size with
`dipaco bench step`, in turn. Larger paths take longer per step and read as much or less.
"""

import json
import os
import statistics

from runs import parser, run


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--reader", required=True)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("tokens")
    options = arguments.parse_args()
    reads, steps = [], []
    for _ in range(options.rounds):
        with open(options.tokens, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # The batch and sequence of size s: 8 sequences of 256 tokens.
        reads.append(json.loads(run(options.reader, options.tokens, 8, 256)))
        step = run(options.dipaco, "--quiet", "bench", "step", "--size", "s", "--steps", options.steps, "--json")
        steps.append(json.loads(step))
    step = statistics.median(found["ms_per_step"] for found in steps)
    print(f"step of size s, 8 x 256 tokens: {step:.1f} ms (median of {options.rounds})")
    for name, key in [("first reading, mean", "first_mean_us"), ("again, mean", "again_mean_us"),
                      ("again, median", "again_median_us"), ("again, worst batch", "again_worst_us")]:
        micros = statistics.median(found[key] for found in reads)
        print(f"{name:22} {micros:8.1f} us per batch, {100 * micros / 1e3 / step:.4f} % of a step, "
              f"{reads[0]['tokens_per_batch'] / micros:.1f} M tokens/s")


if __name__ == "__main__":
    main()
