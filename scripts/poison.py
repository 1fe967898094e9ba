#!/usr/bin/env python3
"""Measures poison: the perplexity of runs in which one of four paths of each module lies, for each `outer.merge`.

    cargo build --release --bin dipaco --example lying_worker
    scripts/poison.py --data corpus/train --validation corpus/validation

4 × 4 paths, and two workers of one thread, which are the example `lying_worker` of crates/train. In a run with lies the
paths 0, 5, 10 and 15 lie: one of the four paths through each module. They send the opposite of their outer gradient, or
noise of its norm, times a factor. The norms are within `outer.guard`. Prints JSON, one run after the other, with the
processor seconds of the coordinator, which merges, and of the workers.
With --keep the rows are also in FOLDER/rows.jsonl, and a repeated call leaves out the runs that have a row.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from runs import ROOT, Led, Process, end, levels, parser, run, seed_and_route, settings

LIARS = "0,5,10,15"

CONFIG = """
[run]
name = "poison"

[model]
hidden_size = 64
blocks = 4
heads = 2
head_dim = 32
ffn_size = 192
context = 64

[prepare]
vocab_size = 1024

[seed_model]
steps = 200
batch = 8
sequence_tokens = 64
validate_every = 100
checkpoint_every = 100
adamw.learning_rate = 2e-3

[train]
rounds = 10
inner_steps = 10
batch = 4
sequence_tokens = 64
lease_seconds = 600
standstill_seconds = 600
# The example repeats no leases, so each one has to leave its state.
state_every = 1
adamw.learning_rate = 1e-3

[outer]
rescale = "none"
nesterov = { learning_rate = 0.35, momentum = 0.9 }
"""


def train(liar, dipaco, folder, run_folder, lie, merge):
    """Trains a run with two lying workers; returns its seconds, and the processor seconds of coordinator and workers."""
    began = time.monotonic()
    led = Led(dipaco, folder, run_folder, *settings({"outer.merge": f'"{merge}"'}))
    words = [] if lie == "none" else [*lie.split("-"), LIARS]
    workers = [
        Process(folder / f"{name}.log", [liar, led.token, name, run_folder / "routing", *words]) for name in ("a", "b")
    ]
    taken = {}
    while not led.finished():
        time.sleep(0.2)
        for process in (led.leader, *workers):
            taken[process] = process.processor_seconds() or taken.get(process, 0.0)
        for worker in workers:
            if worker.ended() and worker.child.returncode != 0 and not led.leader.ended():
                sys.exit(f"a worker has ended: {worker.log}\n{pathlib.Path(worker.log).read_text()}")
    end(*workers)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "coordinator_processor_seconds": round(taken[led.leader], 2),
        "worker_processor_seconds": round(sum(taken[worker] for worker in workers), 2),
    }


def main():
    options = parser(__doc__)
    options.add_argument("--liar", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "target/release/examples/lying_worker", help="the lying worker")
    options.add_argument("--data", required=True, help="C4-form text")
    options.add_argument("--validation", required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options.add_argument("--merges", nargs="+", default=["mean", "clipped", "trimmed"])
    options.add_argument("--lies", nargs="+", default=["none", "flip-1", "flip-10"], help="none, or a lie and a factor: flip-10, noise-10")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key of all runs")
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    options = options.parse_args()
    dipaco = options.dipaco
    os.environ["RAYON_NUM_THREADS"] = "1"
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="poison-"))
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.toml"
    config.write_text(CONFIG + levels(4, 4))
    rows = folder / "rows.jsonl"
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    measured = {(row["seed"], row["lie"], row["merge"]) for row in done}
    prepared = folder / "prepared"
    run(dipaco, "prepare", options.data, "--validation", options.validation, "--run", prepared, "--config", config)
    overrides = [word for value in options.set for word in ("--set", value)]
    for seed in options.seeds:
        routed = folder / f"routed-{seed}"
        values = {"run.seed": seed, "run.data": f'"{prepared / "data"}"'}
        if not (routed / "routing" / "train" / "shards.json").exists():
            seed_and_route(dipaco, routed, "--config", config, *settings(values), *overrides)
        for lie in options.lies:
            for merge in options.merges:
                if (seed, lie, merge) in measured:
                    continue
                name = f"{merge}-{lie}-{seed}"
                trained = folder / name
                shutil.rmtree(trained, ignore_errors=True)
                shutil.copytree(routed, trained, symlinks=True)
                logs = folder / f"logs-{name}"
                logs.mkdir(exist_ok=True)
                costs = train(options.liar, dipaco, logs, trained, lie, merge)
                found = json.loads(run(dipaco, "evaluate", "--json", "--run", trained))
                perplexity = next(row["perplexity"] for row in found if row["model"] != "seed")
                row = {"seed": seed, "lie": lie, "merge": merge, "perplexity": perplexity, **costs}
                print(json.dumps(row), flush=True)
                with open(rows, "a") as file:
                    file.write(json.dumps(row) + "\n")
                shutil.rmtree(trained)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
