#!/usr/bin/env python3
"""Moves the clock of a training by 91 days, so that every certificate of its start expires.

    scripts/moved-clock.py --dipaco target/release/dipaco

A coordinator and two workers train a tiny run under Debian's `faketime`, which shows all of them the same moved time. After
some rounds the time jumps by --days. The workers must stay. Then the coordinator is killed and started again, and then one
worker is stopped for longer than a connection lives. The workers must connect again each time, and the run must go on.
A worker with a copy of the first join token must be refused: this shows that the clock has moved.
Prints JSON; exits with 1 when a step fails.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from runs import TINY, Led, end, parser, run, settings, untrained

# Longer than the idle timeout of a connection.
STOPPED = 25
SETTLED = 10
PATIENCE = 120


def main():
    options = parser(__doc__)
    options.add_argument("--days", type=int, default=91)
    options.add_argument("--library", default="/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
    options = options.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="moved-clock-"))
    made = folder / "run"
    untrained(options.dipaco, made, TINY)

    shown = folder / "time"
    shown.write_text("+0\n")
    os.environ |= {
        "LD_PRELOAD": options.library,
        "FAKETIME_TIMESTAMP_FILE": str(shown),
        "FAKETIME_CACHE_DURATION": "1",
        # Only the time of day moves: sleeps and leases are of the monotonic clock.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    values = {"train.rounds": 1_000_000, "train.threads_per_worker": 1, "train.lease_seconds": 5}
    led = Led(options.dipaco, folder, made, *settings(values))
    workers = [led.worker(f"w{number}") for number in range(2)]
    try:
        found = move(options, led, workers, shown)
    finally:
        end(*workers, led.leader)
    shutil.rmtree(folder)
    print(json.dumps(found, indent=2))


def move(options, led, workers, shown):
    """Moves the shown time of a running training, and disturbs it; returns what was seen."""
    folder, made = led.folder, led.run
    first_token = folder / "first.token"
    shutil.copy(led.token, first_token)

    def rounds():
        status = json.loads(run(options.dipaco, "status", "--json", "--run", made))
        steps = [path["steps"] for path in (status.get("training") or {"paths": [{"steps": 0}]})["paths"]]
        return min(steps) // 5

    def goes_on(what):
        """Waits for further rounds; returns their number."""
        before, until = rounds(), time.monotonic() + PATIENCE
        while rounds() < before + 5:
            for process in (led.leader, *workers):
                if process.ended():
                    sys.exit(f"{what}: {process.log} has ended\n{process.log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() > until:
                sys.exit(f"{what}: no five rounds in {PATIENCE} s, see {folder}")
            time.sleep(0.5)
        return rounds()

    found = {"days": options.days}
    found["rounds_before"] = goes_on("before the clock moves")
    shown.write_text(f"+{options.days}d\n")
    found["rounds_after_the_jump"] = goes_on("after the jump")
    # Every process looks at the shown time once a second, and renews its token with its next request.
    time.sleep(SETTLED)

    refused = subprocess.run(
        [options.dipaco, "worker", "--join", first_token, "--name", "late", "--cache", folder / "late"],
        capture_output=True, text=True, timeout=PATIENCE,
    )
    found["first_token"] = {"exit": refused.returncode, "says": refused.stderr.strip().splitlines()[-1:]}
    if refused.returncode == 0 or "expired" not in refused.stderr:
        sys.exit(f"a worker with the first token was not refused as expired: {refused.stderr}")

    led.leader.send(signal.SIGKILL)
    led.leader.child.wait()
    led.leader.start()
    time.sleep(2)
    found["rounds_after_a_new_coordinator"] = goes_on("after a new coordinator")

    workers[0].send(signal.SIGSTOP)
    time.sleep(STOPPED)
    workers[0].send(signal.SIGCONT)
    found["rounds_after_a_stopped_worker"] = goes_on("after a stopped worker")
    joined = (folder / "coordinator.log").read_text(errors="replace").count("joined")
    found["connections"] = joined
    found["worker_processes_started"] = len(workers) + sum(worker.restarts for worker in workers)
    return found


main()
