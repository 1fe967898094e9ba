#!/usr/bin/env python3
"""Compares the matrix products of a training step with those of libraries, in turn on one machine.

    scripts/bench-products.py --program target/release/examples/product_rates --python VENV/bin/python
    scripts/bench-products.py ... --sizes s,m --dtypes f32 --rounds 3 --log bench-products.jsonl

Times the five linear maps of a path at the sizes of `dipaco bench step`: queries, keys and values; attention's output; gate and up;
down; head. Each has three products: the output, the gradient of the input, the gradient of the weights. The program is built with
`cargo build --release -p dipaco-ops --example product_rates`; it also times the `gemm` crate. The interpreter of --python has
torch (MKL in f32, oneDNN in bf16) and numpy (OpenBLAS, f32). Programs run one after the other, and each round runs all of
them. Packing counts on every side. Results have the dtype of the operands, except for our gradients of weights, which are f32.

Prints a table: for each dtype, size and product the rate of each library in GFLOP/s, all maps of the path together, as often as a
step has them, and our rate over that of the fastest library; and the worst of the maps. The time of a product is the median
of all its tries but the first of each round. The log keeps each try.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from runs import parser

# Blocks, width, heads, vocabulary, rows; heads have 64 elements, and the feed-forward layer 8/3 of the width.
SIZES = {"s": (4, 256, 4, 4096, 2048), "m": (8, 512, 8, 8192, 2048), "l": (12, 896, 16, 32000, 1024)}
PRODUCTS = ("output", "input gradient", "weight gradient")


def maps(size):
    """The linear maps of a path, as rows,inputs,outputs, and how many a step has of each."""
    blocks, width, heads, vocabulary, rows = SIZES[size]
    attention, ffn = 64 * heads, -(-8 * width // (3 * 64)) * 64
    found = {
        (rows, width, 3 * attention): blocks,
        (rows, attention, width): blocks,
        (rows, width, 2 * ffn): blocks,
        (rows, ffn, width): blocks,
        (rows, width, vocabulary): 1,
    }
    return {",".join(str(number) for number in sizes): count for sizes, count in found.items()}


def library_side(name, dtype, tries, texts, threads):
    """Times a Python library; prints the lines that the program prints for ours."""
    import time

    if name == "numpy":
        import numpy as library

        def numbers(rows, columns):
            return (library.arange(rows * columns, dtype="float32").reshape(rows, columns) % 7) * 0.25 - 0.5

        def results(rows, columns):
            return library.empty((rows, columns), dtype="float32")

        def multiply(a, b, c):
            library.matmul(a, b, out=c)

    else:
        import torch as library

        library.set_num_threads(threads)
        kind = {"f32": library.float32, "bf16": library.bfloat16}[dtype]

        def numbers(rows, columns):
            return ((library.arange(rows * columns) % 7) * 0.25 - 0.5).reshape(rows, columns).to(kind)

        def results(rows, columns):
            return library.empty((rows, columns), dtype=kind)

        def multiply(a, b, c):
            library.mm(a, b, out=c)

    for text in texts:
        rows, inputs, outputs = (int(number) for number in text.split(","))
        x, dy, weight = numbers(rows, inputs), numbers(rows, outputs), numbers(outputs, inputs)
        operands = {
            "output": (x, weight.T, results(rows, outputs)),
            "input gradient": (dy, weight, results(rows, inputs)),
            "weight gradient": (dy.T, x, results(outputs, inputs)),
        }
        for product in PRODUCTS:
            seconds = []
            for _ in range(tries):
                began = time.perf_counter()
                multiply(*operands[product])
                seconds.append(time.perf_counter() - began)
            print(json.dumps({"library": name, "dtype": dtype, "map": text, "product": product, "seconds": seconds}))


def timed(command, threads):
    """Runs a side; returns its lines."""
    environment = os.environ | {name: str(threads) for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]}: exit {done.returncode}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(times, sizes, dtypes):
    """Prints the rates. `times` has the seconds of all tries by library, dtype, map and product."""
    print("| dtype | size | product | GFLOP/s | over the fastest library | worst map |\n|---|---|---|--:|--:|--:|")
    for dtype in dtypes:
        libraries = sorted({library for library, kind, *_ in times if kind == dtype})
        ours = next(library for library in libraries if library.startswith("dipaco"))
        for size in sizes:
            for product in PRODUCTS:
                seconds, flops, worst = dict.fromkeys(libraries, 0.0), 0.0, float("inf")
                for text, count in maps(size).items():
                    rows, inputs, outputs = (int(number) for number in text.split(","))
                    flops += 2.0 * count * rows * inputs * outputs
                    medians = {library: statistics.median(times[library, dtype, text, product]) for library in libraries}
                    for library in libraries:
                        seconds[library] += count * medians[library]
                    worst = min(worst, min(medians[other] for other in libraries if other != ours) / medians[ours])
                rates = {library: flops / seconds[library] / 1e9 for library in libraries}
                fastest = max(rates[other] for other in libraries if other != ours)
                shown = ", ".join(f"{library} {rate:.0f}" for library, rate in sorted(rates.items(), key=lambda item: -item[1]))
                print(f"| {dtype} | {size} | {product} | {shown} | {rates[ours] / fastest:.2f} | {worst:.2f} |")


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/examples/product_rates"))
    options.add_argument("--python", default=sys.executable, help="the Python that has torch and numpy")
    options.add_argument("--sizes", type=lambda text: text.split(","), default=list(SIZES))
    options.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32", "bf16"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--tries", type=int, default=7, help="of each product in a round")
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("bench-products.jsonl"), help="appended to")
    options.add_argument("--library", nargs="+", help="time one Python library: its name, a dtype, and maps")
    options = options.parse_args()
    if options.library:
        name, dtype, *texts = options.library
        return library_side(name, dtype, options.tries, texts, options.threads)
    times = {}
    with open(options.log, "a") as log:
        for number in range(1, options.rounds + 1):
            for dtype in options.dtypes:
                for size in options.sizes:
                    sides = [[options.program.resolve(), dtype, options.tries, *maps(size)]]
                    for library in ["torch", "numpy"] if dtype == "f32" else ["torch"]:
                        script = [options.python, __file__, "--tries", options.tries, "--threads", options.threads]
                        sides.append([*script, "--library", library, dtype, *maps(size)])
                    for side in sides:
                        for line in timed(side, options.threads):
                            log.write(json.dumps({"round": number, "size": size} | line) + "\n")
                            key = tuple(line[name] for name in ("library", "dtype", "map", "product"))
                            # The first try brings memory and code into the caches.
                            times.setdefault(key, []).extend(line["seconds"][1:])
                    print(f"round {number}: {dtype} {size}", file=sys.stderr, flush=True)
    table(times, options.sizes, options.dtypes)


if __name__ == "__main__":
    sys.exit(main())
