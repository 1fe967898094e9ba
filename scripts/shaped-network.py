#!/usr/bin/env python3
"""Trains over a shaped network and measures the share of the workers' time that is inner steps.

    sudo scripts/shaped-network.py --dipaco target/release/dipaco --rate 1gbit --delay 25ms

The coordinator and each worker live in network namespaces of their own, joined by a bridge. `tc netem` shapes the packets that
each end sends: it delays them by --delay (a round trip takes twice as long), limits them to --rate and loses the share --loss.
Each worker has one path. The same small run is trained with each scheme in turn, --repeat times. Needs Linux, root, `ip`, and
`tc` with netem; without permission to use them it reports that and ends with 0. With --relay a relay in user space shapes
the packets instead (cargo build --release -p dipaco-net --example shaped_relay). Prints JSON.
"""

import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from namespaces import Namespaces
from runs import CORPUS, free_port, levels, parser, untrained, wait_for_token

CONFIG = """
[run]
seed = 7

[prepare]
vocab_size = 2048
text_document_bytes = 1024

[model]
hidden_size = 128
blocks = 4
heads = 4
head_dim = 32
ffn_size = 384
context = 256
dtype = "bf16"
{levels}
[seed_model]
steps = 10
batch = 4
sequence_tokens = 256
checkpoint_every = 10

[train]
rounds = {rounds}
inner_steps = {inner_steps}
batch = 4
sequence_tokens = 256
threads_per_worker = 1
{held}

[routing]
prefix_tokens = 32
"""

HELD = "state_every = 1000\nheld_paths = 4"

SCHEMES = {
    "synchronous, f32": ("", ""),
    "synchronous, f32, states stay with workers": (HELD, ""),
    "streaming, E3M0": (
        HELD,
        '\n[sync]\nfragments = 2\noverlap_steps = {overlap}\nblend = 0.5\n'
        '\n[outer]\ncompression = "e3m0"\nbroadcast = "e3m0"\n',
    ),
}


class ShapedNamespaces(Namespaces):
    """A namespace for each end. The first one listens."""

    listen = advertise = "10.77.0.1:7440"

    def __init__(self, ends, shape):
        super().__init__(ends)
        if shape:
            for end, device in enumerate(self.devices):
                # Room for all packets under way: a second at the highest rate.
                self.inside(end, "tc", "qdisc", "add", "dev", device, "root", "netem", "limit", "100000", *shape)

    def start(self, end, words, log):
        out = open(log, "ab")
        command = ["ip", "netns", "exec", self.names[end], *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True)


class Relay:
    """All ends on one machine, with a relay between the coordinator and the workers."""

    def __init__(self, program, options):
        ports = [free_port(), free_port()]
        self.listen, self.advertise = (f"127.0.0.1:{port}" for port in ports)
        milliseconds, megabits, percent = (float(re.match(r"[0-9.]+", word)[0]) for word in options)
        if options[1].endswith("gbit"):
            megabits *= 1000
        words = [program, self.advertise, self.listen, milliseconds, megabits, percent]
        self.relay = subprocess.Popen([str(word) for word in words])

    def start(self, end, words, log):
        del end
        return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=open(log, "ab"), text=True)

    def remove(self):
        self.relay.kill()
        self.relay.wait()


def missing_permission():
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return "needs root, `ip` and `tc`"
    try:
        network = ShapedNamespaces(2, ["delay", "1ms"])
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    network.remove()
    return None


def train(dipaco, seeded, folder, config, network, workers):
    shutil.copytree(seeded, folder / "run", symlinks=True)
    (folder / "config.toml").write_text(config)
    try:
        leader = network.start(
            0,
            [dipaco, "coordinator", "-v", "--run", folder / "run", "--config", folder / "config.toml"]
            + ["--listen", network.listen, "--advertise", network.advertise, "--json"],
            folder / "coordinator.log",
        )
        log = folder / "coordinator.log"
        token = wait_for_token(folder / "run", lambda: leader.poll() is not None, log)
        joined = [
            network.start(
                number,
                [dipaco, "worker", "--join", token, "--name", f"w{number}", "--threads", 1]
                + ["--cache", folder / f"cache-{number}"],
                folder / f"worker-{number}.log",
            )
            for number in range(1, workers + 1)
        ]
        out, _ = leader.communicate(timeout=3600)
        if leader.returncode != 0:
            sys.exit((folder / "coordinator.log").read_text())
        for worker in joined:
            worker.communicate(timeout=60)
    finally:
        network.remove()
    summary = json.loads(out)
    summary = summary.get("training", summary)
    spent, waited = summary["inner_seconds"], summary["waited_seconds"]
    return {
        "share_of_inner_steps": spent / (spent + waited),
        "inner_seconds": spent,
        "waited_seconds": waited,
        "seconds": summary["seconds"],
        "megabytes": (summary["bytes_sent"] + summary["bytes_received"]) / 1e6,
    }


def main():
    options = parser(__doc__)
    options.add_argument("--rate", default="1gbit")
    options.add_argument("--delay", default="25ms", help="of each end; a round trip takes twice as long")
    options.add_argument("--loss", default="0%")
    options.add_argument("--inner-steps", type=int, default=50)
    options.add_argument("--overlap", type=int, default=10)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--repeat", type=int, default=2)
    options.add_argument("--relay", help="the program shaped_relay, instead of namespaces")
    options.add_argument("--text", default=CORPUS)
    options = options.parse_args()
    missing = None if options.relay else missing_permission()
    if missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return
    dipaco = options.dipaco

    def network():
        if options.relay:
            return Relay(options.relay, [options.delay, options.rate, options.loss])
        shape = ["delay", options.delay, "rate", options.rate, "loss", options.loss]
        return ShapedNamespaces(options.workers + 1, shape)

    results = {name: [] for name in SCHEMES}
    with tempfile.TemporaryDirectory(prefix="shaped-") as temporary:
        base = pathlib.Path(temporary)
        seeded, config = base / "seeded", base / "config.toml"

        def text(scheme):
            held, sections = SCHEMES[scheme]
            # The second half of the model is shared by all paths: everyone waits for everyone.
            topology = levels(options.workers, 1)
            filled = CONFIG.format(rounds=options.rounds, inner_steps=options.inner_steps, levels=topology, held=held)
            return filled + sections.format(overlap=options.overlap)

        config.write_text(text("synchronous, f32"))
        untrained(dipaco, seeded, config, options.text)
        for repeat in range(options.repeat):
            for number, scheme in enumerate(SCHEMES):
                folder = base / f"{repeat}-{number}"
                folder.mkdir()
                results[scheme].append(train(dipaco, seeded, folder, text(scheme), network(), options.workers))
                shutil.rmtree(folder)
    median = lambda scheme, key: statistics.median(entry[key] for entry in results[scheme])
    print(
        json.dumps(
            {
                "shape": {"by": "relay" if options.relay else "netem", "rate": options.rate, "delay_each_way": options.delay, "loss": options.loss},
                "inner_steps": options.inner_steps,
                "overlap_steps": options.overlap,
                "workers": options.workers,
                "median_share_of_inner_steps": {s: round(median(s, "share_of_inner_steps"), 4) for s in SCHEMES},
                "median_megabytes": {s: round(median(s, "megabytes"), 1) for s in SCHEMES},
                "runs": results,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
