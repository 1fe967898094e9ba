#!/usr/bin/env python3
"""Lints the metrics of a coordinator, a synchronizer and a server with Prometheus's own promtool.

    scripts/check-metrics.py --dipaco target/release/dipaco
    scripts/check-metrics.py --dipaco target/release/dipaco --promtool FILE

A run of 2 x 2 paths trains with a synchronizer and two workers, one of which is killed, so that every metric has a value. Then
a server answers a completion. Each process is asked for /metrics, and `promtool check metrics` must have nothing to say
about the answer. The same answer without its lines of help must fail: this shows that the linter lints.
Without --promtool and without one in the PATH it downloads Debian's package `prometheus` and unpacks it into a temporary
folder: it installs nothing and starts no service. Prints a table; exits with 1 when promtool complains.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from runs import CORPUS, TINY, VALIDATION, Led, end, free_port, parser, run, settings, untrained
from serving import Server

PATIENCE = 180
# Enough steps that a worker can be killed in the middle of a lease.
SETTINGS = {
    "train.rounds": 3,
    "train.inner_steps": 100,
    "train.threads_per_worker": 1,
    "train.lease_seconds": 3,
    "train.validate_every": 1,
}


def promtool(folder):
    """The linter of the PATH, or that of Debian's package."""
    if found := shutil.which("promtool"):
        return found
    packed = folder / "prometheus"
    packed.mkdir()
    for words in (["apt-get", "download", "-q", "prometheus"], ["sh", "-c", "dpkg -x prometheus_*.deb ."]):
        done = subprocess.run(words, cwd=packed, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return packed / "usr/bin/promtool"


def lint(tool, text):
    """What promtool says about metrics; empty when it accepts them."""
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True)
    said = (done.stdout + done.stderr).strip()
    return said if done.returncode != 0 or said else ""


def get(base):
    with urllib.request.urlopen(base + "/metrics", timeout=60) as reply:
        return reply.read().decode()


def until(what, process, happened):
    """Waits until `happened` returns something; returns it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if process.ended():
            sys.exit(f"{what}: {process.log} has ended\n{process.log.read_text(errors='replace')[-2000:]}")
        try:
            if found := happened():
                return found
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"not within {PATIENCE} s: {what}")


def has(text, *names):
    """The text, if each of these metrics has a value in it that is not 0."""
    values = {name: value for name, value in re.findall(r"^(\w+)\{.*\} (\S+)$", text, re.MULTILINE) if float(value) != 0}
    return text if all(f"dipaco_{name}" in values for name in names) else None


def trained(options, folder):
    """Trains a run; returns it, and the metrics of its coordinator and its synchronizer on the way."""
    made = folder / "run"
    untrained(options.dipaco, made, TINY, CORPUS, "--validation", VALIDATION)
    lead, second = (f"http://127.0.0.1:{port}" for port in (free_port(), free_port()))
    led = Led(options.dipaco, folder, made, "--http", lead.rpartition(":")[2], *settings(SETTINGS))
    synchronizer = led.synchronizer("synchronizer", "0", "--http", second.rpartition(":")[2])
    workers = [led.worker(name) for name in ("first", "second")]
    try:
        until("a lease", led.leader, lambda: re.search(r'silent_seconds\{.*worker="second"', get(lead)))
        workers[1].send(signal.SIGKILL)
        names = ["leases", "leases_lost_total", "path_loss_nats", "path_heldout_loss_nats", "validation_loss_nats"]
        coordinator = until("every metric", led.leader, lambda: has(get(lead), *names))
        of_synchronizer = until("an outer step", synchronizer, lambda: has(get(second), "synchronizer_outer_steps_total"))
        until_end = time.monotonic() + PATIENCE
        while not led.finished():
            if time.monotonic() > until_end:
                sys.exit(f"the run is not complete after {PATIENCE} s: {led.leader.log}")
            time.sleep(0.1)
    finally:
        end(*workers, synchronizer, led.leader)
    return made, coordinator, of_synchronizer


def served(options, made):
    """The metrics of a server that has answered."""
    with Server(options.dipaco, made) as server:
        model = json.load(urllib.request.urlopen(server.url + "/v1/models", timeout=60))["data"][0]["id"]
        body = json.dumps({"model": model, "prompt": "fn main() {", "max_tokens": 5}).encode()
        asked = urllib.request.Request(server.url + "/v1/completions", body, {"content-type": "application/json"})
        urllib.request.urlopen(asked, timeout=60).read()
        return get(server.url)


def main():
    options = parser(__doc__)
    options.add_argument("--promtool", type=pathlib.Path, help="the linter")
    options = options.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="check-metrics-"))
    tool = options.promtool or promtool(folder)
    print(run(tool, "--version").splitlines()[0])
    made, coordinator, synchronizer = trained(options, folder)
    texts = {"coordinator": coordinator, "synchronizer": synchronizer, "server": served(options, made)}
    failed = False
    print(f"{'process':<16}{'metrics':>8}{'values':>8}  promtool")
    for name, text in texts.items():
        helped = len(re.findall("^# HELP ", text, re.MULTILINE))
        values = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
        said = lint(tool, text)
        print(f"{name:<16}{helped:>8}{values:>8}  {said.replace(chr(10), '; ') or 'accepts them'}")
        if not lint(tool, re.sub("^# HELP .*\n", "", text, flags=re.MULTILINE)):
            sys.exit(f"promtool accepts the metrics of the {name} without help too: it does not lint")
        failed |= bool(said)
    shutil.rmtree(folder)
    if failed:
        sys.exit("promtool complains")


if __name__ == "__main__":
    main()
