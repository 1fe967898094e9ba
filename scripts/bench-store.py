#!/usr/bin/env python3
"""Compares a run in an object store with the same run on a local disk: time, bytes and bits.

    scripts/bench-store.py --dipaco target/release/dipaco --venv VENV --size small --repeat 3
    scripts/bench-store.py --dipaco target/release/dipaco --venv VENV --size large --repeat 1

A coordinator and two workers train 2 x 2 paths, in turn with the store in a folder and in a SeaweedFS on the same machine.
Paths of the size `small` have 1.4M parameters (configs/quickstart.toml), those of the size `large` 135M (configs/smollm2-2x2.toml with random
weights, 2 rounds of one short step). Each run in the object store has a fresh server, and its time holds what the server
computes. Prints one line of JSON for each run, and then the medians and their ratio.

seconds         from the start of the coordinator to its end
waited_seconds  time of the two workers that was no inner step
store_written   bytes that went into the store: SeaweedFS counts them. On a disk: what the coordinator's process wrote (wchar)
store_read      bytes that came from the store. On a disk: what the coordinator's process read (rchar). Its reads of shards,
                its events, its log and the files of uploads that outgrow its memory are among the two
to_workers      bytes of the coordinator's UDP datagrams to the workers, and from_workers of theirs
linked          the part of store_read that workers read straight from the store

scripts/stores.py says what to install.
"""

import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

from runs import CORPUS, ROOT, Led, bits, end, parser, run, settings, untrained
from stores import BUCKET, SeaweedFs

# The configuration of a size, and what changes. Nothing is measured before the paths part, so the seed takes no steps.
SIZES = {
    "small": ("quickstart.toml", {"seed_model.steps": 0}),
    # The embedding keeps its 49,152 rows, although this text gives a smaller tokenizer.
    "large": (
        "smollm2-2x2.toml",
        {
            "prepare.vocab_size": 2048,
            "prepare.validation_fraction": 0.1,
            "seed_model.steps": 0,
            "train.rounds": 2,
            "train.inner_steps": 1,
            "train.batch": 1,
            "train.sequence_tokens": 64,
        },
    ),
}


def prepare(options, folder):
    """Makes a run that is ready to be trained, in a folder."""
    config, values = SIZES[options.size]
    for name in ("rounds", "inner_steps"):
        if value := getattr(options, name):
            values = values | {f"train.{name}": value}
    seeded = folder / "seeded"
    words = settings(values | {"train.threads_per_worker": 1})
    untrained(options.dipaco, seeded, ROOT / "configs" / config, CORPUS, *words)
    return seeded


def train(dipaco, folder, run_folder):
    """Trains with a coordinator and two workers. Returns the seconds, the coordinator's summary and its bytes of files."""
    folder.mkdir()
    begun = time.monotonic()
    led = Led(dipaco, folder, run_folder)
    workers = [led.worker(f"w{number}") for number in range(2)]
    # A process that has ended keeps its account until somebody asks for its status.
    os.waitid(os.P_PID, led.leader.child.pid, os.WEXITED | os.WNOWAIT)
    seconds = time.monotonic() - begun
    lines = open(f"/proc/{led.leader.child.pid}/io").read().splitlines()
    account = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    log = pathlib.Path(led.leader.log).read_text()
    if led.leader.child.wait() != 0:
        sys.exit(f"the coordinator has failed:\n{log}")
    end(*workers)
    return seconds, json.loads(log[log.rindex("\n{") :]), account


def measure(options, seeded, folder, side):
    run_folder = folder / "run"
    server = None
    try:
        if side == "disk":
            shutil.copytree(seeded, run_folder, symlinks=True)
        else:
            shutil.copytree(seeded, run_folder, symlinks=True, ignore=shutil.ignore_patterns("store"))
            server = SeaweedFs(folder / "server", options.venv)
            server.enter()
            run(options.dipaco, "seed", "--run", run_folder, "--set", f"run.store=s3://{BUCKET}/run")
            written, read = server.moved()
        seconds, summary, account = train(options.dipaco, folder / "logs", run_folder)
        moved = (account["wchar"], account["rchar"])
        if server:
            now = server.moved()
            moved = (now[0] - written, now[1] - read)
        result = {
            "side": side,
            "seconds": round(seconds, 2),
            "waited_seconds": round(summary["waited_seconds"], 2),
            "store_written": moved[0],
            "store_read": moved[1],
            "to_workers": summary["bytes_sent"],
            "from_workers": summary["bytes_received"],
            "linked": summary["bytes_linked"],
        }
        return result, bits(options.dipaco, run_folder)
    finally:
        if server:
            server.end()


def main():
    options = parser(__doc__)
    options.add_argument("--venv", type=pathlib.Path, required=True, help="a virtual environment with SeaweedFS")
    options.add_argument("--size", choices=["small", "large"], default="small")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--rounds", type=int, help="other than those of the size")
    options.add_argument("--inner-steps", type=int)
    options.add_argument("--folder", type=pathlib.Path, help="where the runs lie for their time; `large` needs 40 GB")
    options = options.parse_args()
    results, found = {"disk": [], "object store": []}, []
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=options.folder) as temporary:
        base = pathlib.Path(temporary)
        seeded = prepare(options, base)
        for repeat in range(options.repeat):
            sides = list(results)
            for side in sides if repeat % 2 == 0 else reversed(sides):
                folder = base / "turn"
                folder.mkdir()
                result, hashes = measure(options, seeded, folder, side)
                shutil.rmtree(folder)
                results[side].append(result)
                found.append(hashes)
                print(json.dumps({"size": options.size, "round": repeat + 1, **result}), flush=True)
    keys = [key for key in results["disk"][0] if key != "side"]
    medians = {side: {key: statistics.median(row[key] for row in rows) for key in keys} for side, rows in results.items()}
    same = all(hashes == found[0] for hashes in found)
    ratio = medians["object store"]["seconds"] / medians["disk"]["seconds"]
    print(json.dumps({"size": options.size, "medians": medians, "seconds_over_disk": round(ratio, 3), "same_bits": same}))
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
