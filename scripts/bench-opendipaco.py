#!/usr/bin/env python3
"""Compares a routed model of `dipaco` with one of OpenDiPaCo, the open implementation in PyTorch, on the same text.

    git clone https://github.com/MasonFlint44/OpenDiPaCo /tmp/opendipaco && git -C /tmp/opendipaco checkout 237d18b
    scripts/bench-opendipaco.py --peer /tmp/opendipaco --python .venv/bin/python --train C4/*.json.gz --test VALIDATION/*.json.gz

Both sides train a dense path and 4 × 4 paths of 1.9M parameters in f32: AdamW 2e-3, 160 steps of 16 × 128 tokens on each
path. Both train on the first 8,000 documents of at least 600 characters, cut after 1,900. Both test in windows of 256
tokens, of which the first 32 are not counted. Outer steps, routers and initial weights are each side's defaults.
The clock runs from the text to the last test number. A dense path of plain AdamW follows after the clock.

--length 4 takes four times the steps. The sides run in turn, seed by seed. Each result is a line of JSON.
PYTHON has the packages torch, numpy, tokenizers and transformers. For times, nothing else should run on the machine.
"""

import glob
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import runs

THREADS = 2
# Settings of the task. All else is the default.
CONFIG = """
[run]
name = "opendipaco"

[model]
hidden_size = 128
blocks = 4
heads = 4
head_dim = 32
ffn_size = 384
context = 256
dtype = "f32"

[prepare]
vocab_size = 4096
tokenizer_sample_bytes = 100_000_000

# The first of the rounds: the dense path and all 16 go on from it. It begins the cosine of the rounds, so its rate is constant.
[seed_model]
steps = 20
batch = 16
sequence_tokens = 128
validate_every = 0
adamw.learning_rate = 2e-3
schedule = { warmup_steps = 0, final_fraction = 1.0 }

[routing]
prefix_tokens = 32

[train]
rounds = %d
inner_steps = 20
batch = 16
sequence_tokens = 128
packing = true
holdout_fraction = 0.0
holdout_sequences = 0
adamw.learning_rate = 2e-3
schedule = { warmup_steps = 0, final_fraction = 0.1 }

[evaluation]
prefix_tokens = 32
sequence_tokens = 256
"""
# As OpenDiPaCo's default: all paths share embedding and head.
GRID = """
[[topology.levels]]
modules = 4
blocks = "0..2"

[[topology.levels]]
modules = 4
blocks = "2..4"

[[topology.levels]]
modules = 1
blocks = ""
embedding = true
head = true
"""
DENSE = """
[[topology.levels]]
modules = 1
blocks = "0..4"
embedding = true
head = true
"""


def options():
    parser = runs.parser(__doc__)
    parser.add_argument("--peer", type=pathlib.Path, help="OpenDiPaCo's sources; without them only dipaco runs")
    parser.add_argument("--python", type=pathlib.Path, default=runs.ROOT / ".venv/bin/python")
    parser.add_argument("--train", nargs="+", required=True, help="files of text in C4's form")
    parser.add_argument("--test", nargs="+", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--length", type=int, default=1, help="multiple of 160 steps")
    parser.add_argument("--keep", type=pathlib.Path, help="folder that keeps text and runs")
    parser.add_argument("--set", action="append", default=[], help="further settings of the runs of dipaco")
    parser.add_argument("--sides", default="opendipaco,dipaco")
    return parser.parse_args()


def documents(patterns, shortest=0, cut=None, most=None):
    """Texts of files, in the order of their names."""
    count = 0
    for name in sorted(name for pattern in patterns for name in glob.glob(pattern)):
        with gzip.open(name, "rt") if name.endswith(".gz") else open(name) as file:
            for line in file:
                text = json.loads(line)["text"]
                if len(text) >= shortest:
                    yield text[:cut]
                    count += 1
                    if count == most:
                        return


def write(file, texts):
    with open(file, "w") as out:
        for text in texts:
            out.write(json.dumps({"text": text}) + "\n")
    return file


class Memory:
    """The largest sum of resident memory of this process's descendants, in MiB, ten samples a second."""

    def __init__(self):
        self.peak, self.ended = 0.0, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        while not self.ended.wait(0.1):
            parents, resident = {}, {}
            for entry in pathlib.Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        fields = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
                    except OSError:
                        continue
                    parents[int(entry.name)] = int(fields["PPid"])
                    resident[int(entry.name)] = int(fields.get("VmRSS", "0 kB").split()[0])
            below = {os.getpid()}
            while more := {child for child, parent in parents.items() if parent in below} - below:
                below |= more
            self.peak = max(self.peak, sum(resident[child] for child in below - {os.getpid()}) / 1024)

    def end(self):
        self.ended.set()
        self.thread.join()
        return round(self.peak, 1)


def peer(given, train, test, seed, folder):
    environment = dict(os.environ, PEER=str(given.peer), TRAIN=str(train), TEST=str(test), SEED=str(seed),
                       ROUNDS=str(8 * given.length), THREADS=str(THREADS))
    words = [str(given.python), str(pathlib.Path(__file__).with_name("opendipaco_side.py"))]
    with open(folder / f"opendipaco-{seed}-{given.length}.log", "w") as log:
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    if done.returncode:
        sys.exit(f"OpenDiPaCo's side failed: {log.name}")
    return json.loads(done.stdout)


def own(given, train, test, seed, folder):
    """Trains and tests both models with the program's commands, as a user does."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"dipaco-{seed}-{given.length}-", dir=folder))
    rounds = 8 * given.length - 1
    for name, levels in (("grid", GRID), ("dense", DENSE)):
        (folder / f"{name}.toml").write_text(levels + CONFIG % rounds)
    words = [word for setting in given.set for word in ("--set", setting)] + ["--set", f"run.seed={seed}", "--set", f"routing.seed={seed}"]
    grid, dense, adamw = folder / "grid", folder / "dense", folder / "adamw"
    steps = {}

    def step(name, *words):
        since = time.perf_counter()
        out = runs.run(given.dipaco, *words)
        steps[name] = round(time.perf_counter() - since, 2)
        return out

    def trained(name, run, workers):
        step(f"fit {name}", "route", "fit", "--run", run)
        step(f"assign {name}", "route", "assign", "--run", run)
        step(f"train {name}", "train", "--run", run, "--workers", workers, "--device", "cpu", "--json")

    def from_grid(name, run, *more):
        step(f"seed of {name}", "seed", "--run", run, "--config", folder / "dense.toml", *words, *more, "--set", f"run.data={grid / 'data'}",
             "--from", grid)
        trained(name, run, 1)

    memory, since = Memory(), time.perf_counter()
    step("prepare", "prepare", "--run", grid, "--config", folder / "grid.toml", *words, "--validation", test, train)
    step("seed", "seed", "--run", grid, "--device", "cpu")
    trained("4 x 4", grid, THREADS)
    from_grid("dense", dense)
    rows = json.loads(step("test", "evaluate", "--run", grid, "--no-seed", "--dense", dense, "--json"))
    seconds, peak = round(time.perf_counter() - since, 2), memory.end()
    found = {row["model"]: round(row["bits_per_byte"], 4) for row in rows}
    plain = ("--set", "outer.rescale=none", "--set", "outer.nesterov.learning_rate=1.0", "--set", "outer.nesterov.momentum=0.0")
    from_grid("dense adamw", adamw, *plain)
    row = json.loads(step("test dense adamw", "evaluate", "--run", adamw, "--path", 0, "--json"))[0]
    return {"dense": found["dense"], "routed": found["routed"], "seconds": seconds, "peak_mib": peak,
            "dense_adamw": round(row["bits_per_byte"], 4), "steps": steps}


def main():
    given = options()
    sides = {"opendipaco": peer, "dipaco": own} if given.peer else {"dipaco": own}
    sides = {name: side for name, side in sides.items() if name in given.sides.split(",")}
    with tempfile.TemporaryDirectory(dir=given.keep) as temporary:
        folder = given.keep or pathlib.Path(temporary)
        train = write(folder / "train.jsonl", documents(given.train, 600, 1900, 8000))
        test = write(folder / "test.jsonl", documents(given.test))
        found = {name: [] for name in sides}
        for seed in map(int, given.seeds.split(",")):
            for name, side in sides.items():
                one = side(given, train, test, seed, folder)
                found[name].append(one)
                print(json.dumps({"side": name, "seed": seed, "length": given.length, **one}), flush=True)
    print("\n| side | 4 × 4, bits per byte by seed | dense | dense, plain AdamW | median s | median MiB |\n|---|---|---|---|--:|--:|")
    for name, rows in found.items():
        bits = [" / ".join(f"{row[key]:.3f}" for row in rows) for key in ("routed", "dense", "dense_adamw")]
        middle = [sorted(row[key] for row in rows)[len(rows) // 2] for key in ("seconds", "peak_mib")]
        print(f"| {name} | {' | '.join(bits)} | {middle[0]:.0f} | {middle[1]:.0f} |")


main()
