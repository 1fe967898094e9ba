#!/usr/bin/env python3
"""Trains runs under a quorum with one worker four times slower than the other and leases that are killed, and compares the
perplexity with that of the same runs in which everyone waits and nothing happens.

    scripts/disturbed.py --dipaco target/release/dipaco --data ../shared/corpus/train --validation ../shared/corpus/validation

16 paths, the sizes of configs/experiments; two workers of one thread. The slow one is stopped for three quarters of the time
(SIGSTOP, SIGCONT). A worker is killed now and then, so that so many leases are lost as --lost says, and started again. Prints
JSON, one run after the other.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from runs import Led, end, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEVELS = """
[[topology.levels]]
modules = 4
blocks = "0..2"
embedding = true

[[topology.levels]]
modules = 4
blocks = "2..4"
head = true
"""
# How long the slow worker runs and stands, in seconds.
RUNS, STANDS = 0.25, 0.75


def leases(log):
    """Leases that have been given out and lost, by the coordinator's log."""
    text = pathlib.Path(log).read_text(errors="replace")
    return text.count(" lease ") - text.count("the lease ran out"), text.count("the lease ran out")


def train(dipaco, folder, run_folder, settings, lost_share, chance):
    led = Led(dipaco, folder, run_folder, *settings)
    fast, slow = led.worker("fast"), led.worker("slow")
    kills, checked, began = 0, 0.0, time.monotonic()
    while not led.finished():
        slow.send(signal.SIGCONT)
        time.sleep(RUNS)
        slow.send(signal.SIGSTOP)
        time.sleep(STANDS)
        for worker in (fast, slow):
            if worker.ended():
                worker.start()
        if time.monotonic() - checked > 2:
            checked = time.monotonic()
            given, _ = leases(led.leader.log)
            # A killed worker loses the lease that it holds.
            if lost_share and kills < given * lost_share:
                chance.choice([fast, slow]).send(signal.SIGKILL)
                kills += 1
    end(fast, slow)
    given, expired = leases(led.leader.log)
    return {"leases": given, "kills": kills, "expired": expired, "seconds": round(time.monotonic() - began, 1)}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dipaco", default="target/release/dipaco")
    options.add_argument("--data", required=True, help="prepared text (a folder `data`), or C4-form text")
    options.add_argument("--validation", required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options.add_argument("--quorum", type=int, default=3, help="paths of four that an outer step has at least")
    options.add_argument("--grace", type=float, default=10.0, help="seconds that it waits for the others; a round takes about 20")
    options.add_argument("--lost", type=float, default=0.1, help="share of the leases that are killed")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    options = options.parse_args()
    dipaco = pathlib.Path(options.dipaco).resolve()
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="disturbed-"))
    folder.mkdir(parents=True, exist_ok=True)
    base = (ROOT / "configs" / "experiments" / "base.toml").read_text()
    config = folder / "config.toml"
    config.write_text(base.replace("[transformer_router]", LEVELS + "\n[transformer_router]"))
    prepared = folder / "prepared"
    run(dipaco, "prepare", options.data, "--validation", options.validation, "--run", prepared, "--config", config)
    quorum = [f"sync.quorum={options.quorum}", f"sync.grace_seconds={options.grace}", "train.lease_seconds=10"]
    quorum = [word for setting in quorum for word in ("--set", setting)]
    for seed in options.seeds:
        calm, wild = folder / f"calm-{seed}", folder / f"wild-{seed}"
        settings = [f"run.seed={seed}", f'run.data="{prepared / "data"}"', f"train.rounds={options.rounds}"]
        words = [word for setting in settings for word in ("--set", setting)]
        run(dipaco, "seed", "--run", calm, "--config", config, *words)
        run(dipaco, "route", "fit", "--run", calm)
        run(dipaco, "route", "assign", "--run", calm)
        shutil.copytree(calm, wild, symlinks=True)
        run(dipaco, "train", "--run", calm, "--workers", 2)
        logs = folder / f"logs-{seed}"
        logs.mkdir()
        what = train(dipaco, logs, wild, quorum, options.lost, random.Random(seed))
        perplexity = {}
        for name, run_folder in (("synchronous", calm), ("disturbed", wild)):
            rows = json.loads(run(dipaco, "evaluate", "--json", "--run", run_folder))
            perplexity[name] = next(row["perplexity"] for row in rows if row["model"] != "seed")
        change = perplexity["disturbed"] / perplexity["synchronous"] - 1
        print(json.dumps({"seed": seed, **perplexity, "change_percent": round(100 * change, 2), **what}), flush=True)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
