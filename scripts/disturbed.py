#!/usr/bin/env python3
"""Compares disturbed runs under a quorum with calm synchronous runs: the perplexities of both.

    scripts/disturbed.py --dipaco target/release/dipaco --data corpus/train --validation corpus/validation

16 paths with the sizes of configs/experiments, and two workers of one thread. In the disturbed run one worker is stopped for
three quarters of the time (SIGSTOP, SIGCONT), so that it is four times slower, and a worker is killed and started again now
and then, so that the share --lost of the leases is lost. Prints JSON, one run after the other.
"""

import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from runs import ROOT, Led, end, levels, parser, run, seed_and_route, settings

# How long the slow worker runs and is stopped, in turn, in seconds.
RUNS, STOPPED = 0.25, 0.75


def leases(log):
    """Leases that have been granted and lost, by the coordinator's log."""
    text = pathlib.Path(log).read_text(errors="replace")
    return text.count(" lease ") - text.count("the lease ran out"), text.count("the lease ran out")


def train(dipaco, folder, run_folder, words, lost_share, chance):
    led = Led(dipaco, folder, run_folder, *words)
    fast, slow = led.worker("fast"), led.worker("slow")
    kills, checked, began = 0, 0.0, time.monotonic()
    while not led.finished():
        slow.send(signal.SIGCONT)
        time.sleep(RUNS)
        slow.send(signal.SIGSTOP)
        time.sleep(STOPPED)
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
    options = parser(__doc__)
    options.add_argument("--data", required=True, help="prepared text (a folder `data`), or C4-form text")
    options.add_argument("--validation", required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options.add_argument("--quorum", type=int, default=3, help="least number of paths, of four, in an outer step")
    options.add_argument("--grace", type=float, default=10.0, help="seconds that an outer step waits for the other paths; a round takes about 20")
    options.add_argument("--lost", type=float, default=0.1, help="share of the leases that are killed")
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    options = options.parse_args()
    dipaco = options.dipaco
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="disturbed-"))
    folder.mkdir(parents=True, exist_ok=True)
    base = (ROOT / "configs" / "experiments" / "base.toml").read_text()
    config = folder / "config.toml"
    config.write_text(base.replace("[transformer_router]", levels(4, 4) + "\n[transformer_router]"))
    prepared = folder / "prepared"
    run(dipaco, "prepare", options.data, "--validation", options.validation, "--run", prepared, "--config", config)
    quorum = {"sync.quorum": options.quorum, "sync.grace_seconds": options.grace, "train.lease_seconds": 10}
    for seed in options.seeds:
        calm, wild = folder / f"calm-{seed}", folder / f"wild-{seed}"
        values = {"run.seed": seed, "run.data": f'"{prepared / "data"}"', "train.rounds": options.rounds}
        seed_and_route(dipaco, calm, "--config", config, *settings(values))
        shutil.copytree(calm, wild, symlinks=True)
        run(dipaco, "train", "--run", calm, "--workers", 2)
        logs = folder / f"logs-{seed}"
        logs.mkdir()
        disturbance = train(dipaco, logs, wild, settings(quorum), options.lost, random.Random(seed))
        perplexity = {}
        for name, run_folder in (("synchronous", calm), ("disturbed", wild)):
            rows = json.loads(run(dipaco, "evaluate", "--json", "--run", run_folder))
            perplexity[name] = next(row["perplexity"] for row in rows if row["model"] != "seed")
        change = perplexity["disturbed"] / perplexity["synchronous"] - 1
        print(json.dumps({"seed": seed, **perplexity, "change_percent": round(100 * change, 2), **disturbance}), flush=True)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
