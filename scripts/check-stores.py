#!/usr/bin/env python3
"""Checks the program with real servers that speak S3. Prints one line of JSON for each check; exits with 1 when one fails.

    cargo build --release --bin dipaco -p dipaco-store --example store_trial
    scripts/check-stores.py --dipaco target/release/dipaco --trial target/release/examples/store_trial \\
      --venv VENV --s3rver FOLDER/node_modules/.bin/s3rver

race     SeaweedFS and moto: --writers writers replace the same manifest and create the same object. Each time exactly one wins.
refuse   nanio and s3rver ignore conditional writes: `doctor --store` and a command that opens the store to write refuse
         them. `doctor` accepts SeaweedFS and moto.
slow     SeaweedFS and moto behind a line of --rate megabytes a second: a large object arrives in both directions.
stop     a run on SeaweedFS, which is stopped for --stopped seconds (SIGSTOP): the run ends with the bits of a run on a disk.
move     a run on SeaweedFS whose coordinator and workers are killed and whose folder is deleted, but for configuration, text,
         shards and secrets: resumed, it ends with the same bits.

scripts/stores.py says what to install.
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from runs import CORPUS, ROOT, TINY, Process, bits, parser, run, settings, untrained
from stores import BUCKET, Line, Moto, Nanio, S3rver, SeaweedFs

ADDRESS = f"s3://{BUCKET}/run"
REFUSAL = "ignores conditional writes"
CHECKS = ("race", "refuse", "slow", "stop", "move")
# What a machine needs to go on with a run: configuration, text, shards and keys.
MOVED = ("config.toml", "data", "routing", "secrets")


def attempt(*words):
    """The exit status and the output of a command that may fail."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def good_servers(options, folder):
    for kind in (SeaweedFs, Moto):
        server = kind(folder / kind.name, options.venv)
        try:
            yield server
        finally:
            server.end()


def race(options, folder):
    for server in good_servers(options, folder):
        server.enter()
        found = json.loads(run(options.trial, "race", ADDRESS, options.writers, options.rounds))
        one = {"1": options.rounds}
        passed = (found["manifest_winners"], found["object_winners"], found["last_manifest"]) == (one, one, options.rounds)
        yield {"server": server.name, **found, "passed": passed}


def refuse(options, folder):
    seeded = folder / "run"
    run(options.dipaco, "prepare", CORPUS, "--run", seeded, "--config", TINY)
    for server in good_servers(options, folder):
        server.enter()
        code, text = attempt(options.dipaco, "doctor", "--store", ADDRESS)
        yield {"server": server.name, "doctor": code, "passed": code == 0 and "refuses to create an object twice" in text}
    for kind, tool in ((Nanio, options.venv), (S3rver, options.s3rver)):
        server = kind(folder / kind.name, tool)
        try:
            server.enter()
            doctor = attempt(options.dipaco, "doctor", "--store", ADDRESS)
            seed = attempt(options.dipaco, "seed", "--run", seeded, "--set", f"run.store={ADDRESS}")
        finally:
            server.end()
        passed = all(code == 1 and REFUSAL in text for code, text in (doctor, seed))
        yield {"server": server.name, "doctor": doctor[0], "seed": seed[0], "message": seed[1].strip(), "passed": passed}


def slow(options, folder):
    for server in good_servers(options, folder):
        line = Line(server, options.rate * 1e6)
        server.enter(line.address)
        found = json.loads(run(options.trial, "large", ADDRESS, options.mebibytes))
        least = found["bytes"] / (options.rate * 1e6)
        # Buffers of the system hold some megabytes beyond the line.
        slowed = min(found["write_seconds"], found["read_seconds"]) > 0.8 * least
        seconds = {key: round(found[key], 1) for key in ("write_seconds", "read_seconds")}
        passed = slowed and found["bytes"] == options.mebibytes << 20
        yield {"server": server.name, "megabytes_per_second": options.rate, "bytes": found["bytes"], **seconds, "passed": passed}


class StoredRun:
    """A run with its store in SeaweedFS, and an undisturbed one on a disk."""

    def __init__(self, options, folder):
        self.dipaco, self.folder = options.dipaco, folder
        self.calm, self.stored = folder / "calm", folder / "stored"
        values = {"train.rounds": 30, "train.inner_steps": 12, "train.threads_per_worker": 1}
        untrained(self.dipaco, self.calm, TINY, CORPUS, *settings(values))
        shutil.copytree(self.calm, self.stored, ignore=shutil.ignore_patterns("store"))
        run(self.dipaco, "train", "--run", self.calm, "--workers", 1)
        self.server = SeaweedFs(folder / SeaweedFs.name, options.venv)
        self.server.enter()
        run(self.dipaco, "seed", "--run", self.stored, "--set", f"run.store={ADDRESS}")

    def train(self, *words):
        """Starts a training, and returns it after its first twenty leases."""
        log = self.folder / f"train-{len(words)}.log"
        train = Process(log, [self.dipaco, "train", "-v", "--run", self.stored, "--workers", 2, *words])
        while committed(train) < 20:
            if train.ended():
                sys.exit(f"the run has ended too early:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        return train

    def finish(self, train):
        """Waits for the end of a training. Returns whether its bits are those of the undisturbed run."""
        if code := train.child.wait(timeout=900):
            sys.exit(f"the run has failed ({code}):\n{pathlib.Path(train.log).read_text(errors='replace')}")
        return bits(self.dipaco, self.calm) == bits(self.dipaco, self.stored)


def committed(train):
    return pathlib.Path(train.log).read_text(errors="replace").count(" committed ")


def stop(options, folder):
    made = StoredRun(options, folder)
    try:
        begun = time.monotonic()
        train = made.train()
        made.server.send(signal.SIGSTOP)
        # What was on its way may still count.
        time.sleep(2)
        before = committed(train)
        time.sleep(options.stopped - 2)
        meanwhile = committed(train) - before
        made.server.send(signal.SIGCONT)
        same = made.finish(train)
        seconds = round(time.monotonic() - begun, 1)
    finally:
        made.server.end()
    leases = {"leases": committed(train), "leases_before": before, "leases_while_stopped": meanwhile}
    passed = same and meanwhile == 0
    yield {"server": made.server.name, "stopped_seconds": options.stopped, **leases, "seconds": seconds, "same_bits": same, "passed": passed}


def move(options, folder):
    made = StoredRun(options, folder)
    try:
        # The workers die with their coordinator: they are of its process group.
        train = made.train()
        train.send(signal.SIGKILL)
        train.child.wait()
        before = committed(train)
        gone = [entry for entry in made.stored.iterdir() if entry.name not in MOVED]
        for entry in gone:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        train = made.train("--resume")
        same = made.finish(train)
    finally:
        made.server.end()
    names = sorted(entry.name for entry in gone)
    leases = {"leases_before": before, "leases_after": committed(train)}
    yield {"server": made.server.name, "deleted": names, **leases, "same_bits": same, "passed": same}


def main():
    options = parser(__doc__)
    options.add_argument("--trial", type=pathlib.Path, default=ROOT / "target/release/examples/store_trial", help="the example store_trial")
    options.add_argument("--venv", type=pathlib.Path, required=True, help="a virtual environment with the servers of PyPI")
    options.add_argument("--s3rver", type=pathlib.Path, help="the program s3rver, for the check `refuse`")
    options.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS)
    options.add_argument("--writers", type=int, default=16)
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--rate", type=float, default=2.0, help="of the slow line in each direction, in megabytes a second")
    options.add_argument("--mebibytes", type=int, default=90, help="length of the large object")
    options.add_argument("--stopped", type=float, default=60.0)
    options = options.parse_args()
    if "refuse" in options.only and not options.s3rver:
        sys.exit("the check `refuse` needs --s3rver")
    failed = 0
    for check in options.only:
        with tempfile.TemporaryDirectory(prefix="stores-") as folder:
            for result in globals()[check](options, pathlib.Path(folder)):
                failed += not result["passed"]
                print(json.dumps({"check": check, **result}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
