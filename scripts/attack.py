#!/usr/bin/env python3
"""Attacks a live coordinator, and measures its memory and what honest workers notice.

    cargo build --release --bin dipaco --example attacker
    scripts/attack.py --seconds 600

One attack after the other, each against a coordinator of its own with 64 paths of 4.2M parameters:

- uploads: one token with 1,024 connections, 16 uploads each, which stop half-way. Memory must stay under a bound.
- handshakes: 10,000 handshakes a minute that begin and never end, from 251 addresses; one of ten comes from the address
  of the honest workers. An honest worker must join within five seconds.
- own-handshakes: the same, all from the address of the honest workers.
- requests: four connections send requests of all kinds with random fields, as fast as they get answers. Memory must be
  flat, and the 99th percentile of honest leases below 50 ms.

Beside each attack a worker trains, another takes leases and gives them back, and every few seconds a worker joins and leaves.
The attackers compete with the coordinator for this machine's processors. Prints a line of JSON for each attack;
exits with 1 if a bound is broken, or if an attack was too weak to show anything. The example is the attacker of crates/train.
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from runs import CORPUS, ROOT, Led, end, parser, run, settings, untrained

CONFIG = """
[run]
name = "attack"

[model]
hidden_size = 256
blocks = 2
heads = 4
head_dim = 64
ffn_size = 1024
context = 64

[[topology.levels]]
modules = 8
blocks = "0"
embedding = true

[[topology.levels]]
modules = 8
blocks = "1"
head = true

[prepare]
vocab_size = 384
text_document_bytes = 256
validation_fraction = 0.05

[seed_model]
steps = 1
batch = 1
sequence_tokens = 64

[routing]
restarts = 1

[train]
rounds = 1000000
inner_steps = 4
batch = 1
sequence_tokens = 64
lease_seconds = 10
standstill_seconds = 10
# The random requests also say that leases diverged.
quarantine_after = 1000
"""

# Promises of docs/security.md and of the project.
UPLOAD_MIB, JOIN_SECONDS, LEASE_MS = 1024, 5.0, 50.0
# An attack that has no processor for its handshakes shows nothing.
HANDSHAKES_EACH_MINUTE = 9000
# Memory is flat if the last fifth of the time holds no more than the second fifth and this.
GROWTH_MIB = 16
JOIN_EVERY = 5.0

# In the attack by uploads some attackers hold leases, and never renew them.
KEEPS_LEASES = {"train.lease_seconds": 3600, "train.standstill_seconds": 3600}

ATTACKS = {
    "uploads": ["uploads", "{seconds}", "1024"],
    "handshakes": ["handshakes", "{seconds}", "10000", "1"],
    "own-handshakes": ["handshakes", "{seconds}", "10000", "10"],
    "requests": ["requests", "{seconds}", "4"],
}


def resident(process):
    """Resident memory of a process in MiB."""
    status = pathlib.Path(f"/proc/{process.child.pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+)", status, re.M)[1]) / 1024


def text_of(log):
    return pathlib.Path(log).read_text(errors="replace")


def join(led, name, limit=60.0):
    """Starts a worker; returns the seconds from its start until the coordinator has welcomed it, and ends it."""
    began = time.monotonic()
    size = os.path.getsize(led.leader.log)
    worker = led.worker(name)
    seconds = None
    while seconds is None and time.monotonic() - began < limit:
        time.sleep(0.01)
        with open(led.leader.log, "rb") as log:
            log.seek(size)
            if re.search(rf'joined.*{name}\b|{name}\b.*joined', log.read().decode(errors="replace")):
                seconds = time.monotonic() - began
    # Its leases are free at once.
    worker.send(signal.SIGKILL)
    worker.child.wait()
    shutil.rmtree(led.folder / f"cache-{name}", ignore_errors=True)
    return seconds


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None


def attacker(options, token, words, log):
    """Starts the attacker program; its JSON line goes to a file."""
    command = [options.attacker, token, *words]
    with open(log, "wb") as out, open(f"{log}.errors", "wb") as errors:
        return subprocess.Popen([str(word) for word in command], stdout=out, stderr=errors)


def play(options, folder, run_folder, name):
    """Plays one attack; returns what was seen."""
    folder.mkdir()
    led = Led(options.dipaco, folder, run_folder, *settings(KEEPS_LEASES if name == "uploads" else {}))
    stranger = folder / "attacker.token"
    run(options.dipaco, "token", "issue", "attacker", "--run", run_folder, "--out", stranger)
    honest = led.worker("trains")
    # Its inner steps stand for those of another machine.
    os.setpriority(os.PRIO_PROCESS, honest.child.pid, 19)
    join(led, "before")
    before = resident(led.leader)
    words = [word.format(seconds=options.seconds) for word in ATTACKS[name]]
    attack = attacker(options, stranger, words, folder / "attack.json")
    probe = attacker(options, led.token, ["honest", options.seconds], folder / "honest.json")
    memory, joins, began, next_join = [], [], time.monotonic(), 2.0
    while attack.poll() is None or probe.poll() is None:
        time.sleep(0.5)
        if led.leader.ended():
            sys.exit(f"{name}: the coordinator has ended: {led.leader.log}\n{text_of(led.leader.log)[-3000:]}")
        now = time.monotonic() - began
        if attack.poll() is None:
            memory.append((now, resident(led.leader)))
        if now >= next_join and attack.poll() is None:
            joins.append(join(led, f"joins-{len(joins)}"))
            next_join = time.monotonic() - began + JOIN_EVERY
    for process, log in ((attack, "attack.json"), (probe, "honest.json")):
        if process.returncode != 0:
            sys.exit(f"{name}: {log}: exit {process.returncode}\n{text_of(folder / f'{log}.errors')}")
    held = [value for _, value in memory]
    fifth = len(held) // 5
    peak = led.leader.most_resident()
    bugs = text_of(led.leader.log).count("this is a bug of dipaco")
    trained = led.leader.ended() is False and honest.ended() is False
    end(honest, led.leader)
    seen = {
        "attack": name,
        "seconds": options.seconds,
        "attacker": json.loads(text_of(folder / "attack.json")),
        "honest": json.loads(text_of(folder / "honest.json")),
        "joins": len(joins),
        "join_seconds_p50": percentile([value or 1e9 for value in joins], 0.5),
        "join_seconds_most": max((value or 1e9 for value in joins), default=None),
        "memory_mib": {
            "before": round(before),
            "second_fifth": round(percentile(held[fifth : 2 * fifth], 0.5)),
            "last_fifth": round(percentile(held[-fifth:], 0.5)),
            "peak": round(peak),
        },
        "honest_worker_lives": trained,
        "bugs_logged": bugs,
    }
    seen["memory_by_time"] = [[round(at), round(value)] for at, value in memory[:: max(1, len(memory) // 60)]]
    return seen


def broken(seen):
    """The promises that were broken."""
    memory, leases = seen["memory_mib"], seen["honest"]["leases_ms"]
    checks = {
        "bugs": seen["bugs_logged"] == 0,
        "the honest worker ended": seen["honest_worker_lives"],
        "joining takes too long": seen["join_seconds_most"] is not None and seen["join_seconds_most"] < JOIN_SECONDS,
    }
    if seen["attack"] == "uploads":
        checks["memory"] = memory["peak"] < UPLOAD_MIB
        checks["the attack was too weak"] = seen["attacker"]["standing_uploads"] > 0
    if "handshakes" in seen["attack"]:
        checks["the attack was too weak"] = seen["attacker"]["begun_each_minute"] > HANDSHAKES_EACH_MINUTE
    if seen["attack"] == "requests":
        checks["memory grows"] = memory["last_fifth"] <= memory["second_fifth"] + GROWTH_MIB
        checks["honest leases wait"] = leases["count"] > 0 and leases["p99"] < LEASE_MS
    return [what for what, kept in checks.items() if not kept]


def main():
    options = parser(__doc__)
    options.add_argument("--attacker", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "target/release/examples/attacker", help="the attacking program")
    options.add_argument("--seconds", type=int, default=600, help="length of each attack")
    options.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    options.add_argument("--keep", help="a folder for the runs and logs, which is kept")
    options = options.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="attack-"))
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.toml"
    config.write_text(CONFIG)
    prepared = folder / "prepared"
    if not (prepared / "routing" / "train" / "shards.json").exists():
        shutil.rmtree(prepared, ignore_errors=True)
        untrained(options.dipaco, prepared, config, CORPUS)
    failed = False
    for name in options.only:
        attacked = folder / name
        shutil.rmtree(attacked, ignore_errors=True)
        attacked.mkdir()
        shutil.copytree(prepared, attacked / "run", symlinks=True)
        seen = play(options, attacked / "logs", attacked / "run", name)
        seen["broken"] = broken(seen)
        failed |= bool(seen["broken"])
        print(json.dumps(seen), flush=True)
        if not options.keep:
            shutil.rmtree(attacked)
    if not options.keep:
        shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
