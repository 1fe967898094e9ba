#!/usr/bin/env python3
"""Compares `dipaco bench step` with PyTorch's compiled training step, in turn on one machine.

    scripts/bench-step.py --torch-script STEP.py                sizes s, m and l in f32 and bf16, 5 rounds
    scripts/bench-step.py --torch-script STEP.py --sizes s,m --dtypes f32 --rounds 3
    scripts/bench-step.py --two-workers --size s [--pin]        two workers of one thread against one of two threads

The log gets a line for each process: the round and the output. Markdown tables go to standard output.
Programs run one after the other, and each round runs all of them, so that a slow minute of the machine touches both
sides. A process reports the median of its steps. Of dipaco's processes the median counts; PyTorch is very sensitive to
whatever else runs, so of its processes the best one counts, and their median stands beside it.

Needs nothing but Python for itself, and for PyTorch the interpreter of --python with torch, numpy and a C++ compiler.
"""
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

from runs import parser

# The least ratio of tokens/s, the most ratio of memory and the least share of the product rate (%).
RATE = {"f32": {"s": 1.15, "m": 1.15, "l": 1.1}, "bf16": {"s": 1.15, "m": 1.15, "l": 1.1}}
MEMORY = {"s": 0.6, "m": 0.7, "l": 0.8}
SHARE = {"f32": {"s": 80, "m": 80, "l": 86}, "bf16": {"s": 65, "m": 70, "l": 70}}
PHASES = ("products", "attention", "head", "optimizer", "rest")
TWO_WORKERS = 1.0


def arguments():
    p = parser(__doc__)
    p.add_argument("--sizes", type=lambda text: text.split(","), default=["s", "m", "l"], help="default s,m,l")
    p.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32", "bf16"], help="default f32,bf16")
    p.add_argument("--rounds", type=int, default=5, help="rounds of all programs (default 5)")
    p.add_argument("--steps", type=int, help="timed steps of each process; the programs' own numbers without it")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    p.add_argument("--torch-script", help="PyTorch's step: takes --size, --threads, --compile, --bf16 and --steps, and prints JSON")
    p.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    p.add_argument("--log", type=pathlib.Path, default=pathlib.Path("bench-step.jsonl"), help="appended to")
    p.add_argument("--two-workers", action="store_true", help="two processes of one thread against one of two")
    p.add_argument("--size", help="one size: --sizes with one name")
    p.add_argument("--pin", action="store_true", help="with --two-workers: each process to a core of its own")
    a = p.parse_args()
    a.sizes = [a.size] if a.size else a.sizes
    for chosen, known, what in ((a.sizes, MEMORY, "size"), (a.dtypes, RATE, "dtype")):
        for name in chosen:
            if name not in known:
                p.error(f"there is no {what} {name!r}: it is one of {', '.join(known)}")
    if not a.two_workers and not a.torch_script:
        p.error("--torch-script is missing: only --two-workers needs no PyTorch")
    if a.rounds < 1:
        p.error("--rounds must be at least 1")
    return a


def dipaco_command(a, size, dtype, threads):
    command = [str(a.dipaco), "bench", "step", "--size", size, "--dtype", dtype, "--threads", str(threads), "--json"]
    return command + (["--steps", str(a.steps)] if a.steps else [])


def torch_command(a, size, dtype):
    command = [a.python, a.torch_script, "--size", size, "--threads", str(a.threads), "--compile"]
    return command + (["--bf16"] if dtype == "bf16" else []) + (["--steps", str(a.steps)] if a.steps else [])


def start(command, core=None):
    pinned = None if core is None else lambda: os.sched_setaffinity(0, {core})
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=pinned)
    except OSError as error:
        sys.exit(f"{command[0]} can't be run: {error}")


def result(process):
    """The JSON object that the process printed: all of its output, or the last line of it."""
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{' '.join(process.args)}\nended with {process.returncode}:\n{out[-2000:]}{err[-4000:]}")
    for text in (out, (out.splitlines() or [""])[-1]):
        try:
            found = json.loads(text)
            break
        except ValueError:
            continue
    else:
        sys.exit(f"{' '.join(process.args)}\nprinted no JSON: {out[-2000:]}")
    for key in ("tokens_per_s", "ms_per_step", "peak_mib"):
        if not isinstance(found.get(key), (int, float)):
            sys.exit(f"{' '.join(process.args)}\nprinted no number `{key}`: {out[-2000:]}")
    return found


class Log:
    def __init__(self, path):
        self.file = path.open("a", encoding="utf-8")

    def write(self, who, number, found):
        time = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.file.write(json.dumps({"time": time, "who": who, "round": number, "result": found}) + "\n")
        self.file.flush()
        print(f"{who} round {number}: {found.get('size')} {found.get('dtype')} {found['tokens_per_s']} tokens/s",
              file=sys.stderr, flush=True)


def median(runs, key):
    values = [run[key] for run in runs if isinstance(run.get(key), (int, float))]
    return statistics.median(values) if values else None


def judged(value, target, digits, least=True, unit=""):
    if value is None:
        return "–", "–"
    met = value >= target if least else value <= target
    sign = "≥" if least else "≤"
    return f"{value:.{digits}f}{unit}" + ("" if met else " ✗"), f"{sign} {target}{unit}"


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def compare(a, log):
    runs = {}
    for number in range(1, a.rounds + 1):
        for dtype in a.dtypes:
            for size in a.sizes:
                for who, command in (("dipaco", dipaco_command(a, size, dtype, a.threads)),
                                     ("torch", torch_command(a, size, dtype))):
                    found = result(start(command))
                    log.write(who, number, found)
                    runs.setdefault((who, dtype, size), []).append(found)

    print(f"{a.rounds} rounds, {a.threads} threads; ✗: the target beside it is missed.\n")
    print(row(["dtype", "size", "dipaco tokens/s", "PyTorch, best", "its median", "ratio", "target",
               "dipaco MiB", "PyTorch MiB", "ratio", "target", "GFLOP/s", "product rate", "share", "target"]))
    print(row(["---", "---"] + ["--:"] * 13))
    for dtype in a.dtypes:
        for size in a.sizes:
            ours, theirs = runs["dipaco", dtype, size], runs["torch", dtype, size]
            rate, other = median(ours, "tokens_per_s"), max(run["tokens_per_s"] for run in theirs)
            memory, other_memory = median(ours, "peak_mib"), median(theirs, "peak_mib")
            share = median(ours, "share")
            number = lambda value: "–" if value is None else f"{value:,.0f}"
            print(row([dtype, size, number(rate), number(other),
                       number(median(theirs, "tokens_per_s")), *judged(rate / other, RATE[dtype][size], 2),
                       number(memory), number(other_memory),
                       *judged(memory / other_memory, MEMORY[size], 2, least=False),
                       number(median(ours, "gflops")), number(median(ours, "product_gflops")),
                       *judged(None if share is None else 100 * share, SHARE[dtype][size], 1, unit=" %")]))
    split(a, runs)


def split(a, runs):
    print("\nWhere a step's time goes, medians, in ms and in percent of the step:\n")
    print(row(["dtype", "size", "step", *PHASES]))
    print(row(["---", "---"] + ["--:"] * (1 + len(PHASES))))
    for dtype in a.dtypes:
        for size in a.sizes:
            ours = runs["dipaco", dtype, size]
            times = {phase: median([run.get("phases") or {} for run in ours], phase) for phase in PHASES}
            step = median(ours, "ms_per_step")
            cell = lambda time: "–" if time is None else f"{time:.1f} ({time / step:.0%})"
            print(row([dtype, size, f"{step:.1f}", *(cell(times[phase]) for phase in PHASES)]))


def two_workers(a, log):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two workers need two cores")
    print(f"Medians of {a.rounds} rounds{', each worker on a core of its own' if a.pin else ''}.\n")
    print(row(["dtype", "size", "one worker of 2 threads, tokens/s", "two workers of 1 thread, together", "ratio",
               "target"]))
    print(row(["---", "---"] + ["--:"] * 4))
    for dtype in a.dtypes:
        for size in a.sizes:
            one, two = [], []
            for number in range(1, a.rounds + 1):
                found = result(start(dipaco_command(a, size, dtype, 2)))
                log.write("one worker", number, found)
                one.append(found["tokens_per_s"])
                pair = [start(dipaco_command(a, size, dtype, 1), core if a.pin else None) for core in cores[:2]]
                both = [result(process) for process in pair]
                for found in both:
                    log.write("two workers", number, found)
                two.append(sum(found["tokens_per_s"] for found in both))
            ratio = statistics.median(two) / statistics.median(one)
            print(row([dtype, size, f"{statistics.median(one):,.0f}", f"{statistics.median(two):,.0f}",
                       *judged(ratio, TWO_WORKERS, 2)]), flush=True)


def main():
    a = arguments()
    log = Log(a.log)
    if a.two_workers:
        two_workers(a, log)
    else:
        compare(a, log)


main()
