#!/usr/bin/env python3
"""Trains a tiny run while processes are killed at random, and compares it with an undisturbed run.

    scripts/soak.py --dipaco target/release/dipaco --kills 1000

The run has one coordinator, a synchronizer for the modules of one level, and three workers. At random moments one of them
gets SIGKILL and is started again, or gets SIGSTOP and some time later SIGCONT. Kills are counted, stops are not. The run must end
with the weights, momenta and path states of the undisturbed run, and `dipaco status --data` must report that every inner
step counts once. With --rogues there are three more workers, the example `rogue_worker` (`cargo build --release --example rogue_worker`):
the training thread of one stands still for good while its connection lives, until the process is killed and started again; that of another
stands still until its lease is lost, and goes on; a third one lies. --seed decides the order of events, as far as timing allows. Prints
JSON; exits with 1 when the runs differ.
"""

import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

from runs import CORPUS, TINY, Led, Process, bits, end, parser, run, settings, untrained

# Seconds after which a connected worker without an inner step loses its lease, and a longer time after which one wakes up.
STANDSTILL, WAKES = 5, 15
STREAMING = {
    "sync.fragments": 2,
    "sync.overlap_steps": 3,
    "sync.blend": 0.5,
    "outer.compression": "e3m0",
    "outer.broadcast": "e3m0",
}


def main():
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=600)
    options.add_argument("--workers", type=int, default=3)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--pause", type=float, default=0.8, help="mean seconds between two disturbances")
    options.add_argument("--streaming", action="store_true", help="fragments, overlap and four bits both ways")
    options.add_argument("--text", default=CORPUS)
    options.add_argument("--rogues", type=pathlib.Path, metavar="ROGUE_WORKER", help="the example; adds three workers that do harm")
    options.add_argument("--keep", help="a folder for the runs, which is kept")
    options = options.parse_args()
    dipaco = options.dipaco
    chance = random.Random(options.seed)
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    values = {"train.rounds": options.rounds, "train.inner_steps": 12, "train.threads_per_worker": 1, "train.lease_seconds": 5}
    values |= STREAMING if options.streaming else {}
    if options.rogues:
        values["train.standstill_seconds"] = STANDSTILL
    calm, wild = folder / "calm", folder / "wild"
    untrained(dipaco, calm, TINY, options.text, *settings(values))
    shutil.copytree(calm, wild, symlinks=True)
    begun = time.monotonic()
    run(dipaco, "train", "--run", calm, "--workers", 1)
    calm_seconds = time.monotonic() - begun

    led = Led(dipaco, folder, wild)
    workers = [led.worker(f"w{number}") for number in range(options.workers)]
    synchronizer = led.synchronizer("s", "0")
    kinds = {"hang": [folder / "cache-hang"], "wake": [folder / "cache-wake", WAKES], "forge": []} if options.rogues else {}
    rogues = {kind: Process(folder / f"{kind}.log", [options.rogues.resolve(), led.token, kind, kind, *words]) for kind, words in kinds.items()}
    # A worker that stands still for good goes on after a kill only.
    killed = [*workers, rogues["hang"]] if rogues else workers
    kills = {"coordinator": 0, "synchronizer": 0, "worker": 0}
    stops = 0
    begun = time.monotonic()
    stopped = []
    finished = False
    while not finished:
        time.sleep(chance.uniform(0, 2 * options.pause) if sum(kills.values()) < options.kills else 0.3)
        now = time.monotonic()
        for process, until in [entry for entry in stopped if entry[1] <= now]:
            process.send(signal.SIGCONT)
            stopped.remove((process, until))
        if led.leader.ended():
            finished = led.finished()
            continue
        for rogue in rogues.values():
            if rogue.ended() and "has accepted" in pathlib.Path(rogue.log).read_text(errors="replace"):
                sys.exit(f"the coordinator has accepted a lie: {rogue.log}")
        for process in [synchronizer, *workers, *rogues.values()]:
            # It was killed, or it gave up because its coordinator was away for too long. After the end of the run it is 0.
            if process.ended() and process.child.returncode != 0:
                process.start()
        if sum(kills.values()) >= options.kills:
            continue
        kind = chance.random()
        if kind < 0.2:
            led.leader.send(signal.SIGKILL)
            kills["coordinator"] += 1
        elif kind < 0.4:
            synchronizer.send(signal.SIGKILL)
            kills["synchronizer"] += 1
        elif kind < 0.9:
            chance.choice(killed).send(signal.SIGKILL)
            kills["worker"] += 1
        else:
            process = chance.choice([led.leader, synchronizer, *workers])
            process.send(signal.SIGSTOP)
            stopped.append((process, now + chance.uniform(0.1, 8)))
            stops += 1
    end(synchronizer, *workers, *rogues.values())
    seconds = time.monotonic() - begun
    (calm_bits, calm_data), (wild_bits, wild_data) = bits(dipaco, calm), bits(dipaco, wild)
    once = "every inner step counts once"
    result = {
        "rounds": options.rounds,
        "scheme": "streaming, overlap 3, E3M0" if options.streaming else "synchronous",
        "rogues": len(rogues),
        "standstills": {kind: rogues[kind].log.read_text().count("stands still") for kind in rogues if kind != "forge"},
        "woken": rogues["wake"].log.read_text().count("goes on") if rogues else 0,
        "leases_lost_by_them": sum("a lease expired" in line and ("hang" in line or "wake" in line) for line in open(led.leader.log)),
        "kills": kills,
        "stops": stops,
        "starts": {
            "coordinator": led.leader.restarts + 1,
            "synchronizer": synchronizer.restarts + 1,
            "workers": sum(process.restarts + 1 for process in workers),
        },
        "seconds": round(seconds, 1),
        "undisturbed_seconds": round(calm_seconds, 1),
        "objects": len(calm_bits),
        "same_bits": calm_bits == wild_bits,
        "same_accounts": calm_data == wild_data and once in calm_data,
    }
    print(json.dumps(result, indent=2))
    if not options.keep:
        shutil.rmtree(folder)
    sys.exit(0 if result["same_bits"] and result["same_accounts"] else 1)


if __name__ == "__main__":
    main()
