"""A server under measurement, requests to it, and runs whose modules all differ, for the scripts that measure serving."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import runs

# Of each size: D, blocks, heads of 64, F, rows of the vocabulary, context. `paper` is the path of configs/paper/16x16.toml.
SIZES = {
    "short": (256, 4, 4, 704, 2048, 512),
    "medium": (512, 8, 8, 1408, 8192, 1024),
    "paper": (896, 12, 16, 2432, 32000, 1024),
}
CONFIG = """
[run]
name = "grid"

[model]
hidden_size = {width}
blocks = {blocks}
heads = {heads}
head_dim = 64
ffn_size = {ffn}
vocab_size = {rows}
context = {context}
tie_embeddings = true

[[topology.levels]]
modules = {grid}
blocks = "0..{half}"
embedding = true
head = true

[[topology.levels]]
modules = {grid}
blocks = "{half}..{blocks}"

[prepare]
vocab_size = 512
text_document_bytes = 256
validation_fraction = 0.05

[seed_model]
steps = 1
batch = 1
sequence_tokens = 64
validate_every = 0

[routing]
features = "seed"
restarts = 1

# Enough paths that each module of a level gets weights of its own.
[train]
rounds = 1
inner_steps = 1
paths_per_round = {trained}
batch = 1
sequence_tokens = 64
holdout_sequences = 0
state_every = 1000
checkpoints = 0

[train.schedule]
warmup_steps = 0

# The outer gradients of a large grid of full precision would take tens of gigabytes.
[outer]
compression = "e3m0"
"""
# Ids that every tokenizer of these runs has.
VOCABULARY = 400


def parser(description, grid):
    """Options of a script that measures servers of one run: a given one, or one that is made for the measurement."""
    options = runs.parser(description)
    options.add_argument("--run", type=pathlib.Path, help="the run; without it, one of --grid and --size is made in --folder")
    options.add_argument("--grid", type=int, default=grid, help="modules of each of two levels")
    options.add_argument("--size", choices=SIZES, default="short", help="of a path")
    options.add_argument("--folder", type=pathlib.Path, help="folder that keeps the run; by default one in the temporary folder")
    options.add_argument("--set", action="append", default=[], help="further settings of `dipaco serve`")
    return options


def prepared(given):
    """The run of the options, made if it is not there."""
    if given.run:
        return given.run
    folder = given.folder or pathlib.Path(tempfile.mkdtemp(prefix="dipaco-grid-"))
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / f"{given.size}-{given.grid}"
    if not (run / "served").exists():
        width, blocks, heads, ffn, rows, context = SIZES[given.size]
        config = folder / f"{given.size}-{given.grid}.toml"
        config.write_text(CONFIG.format(
            width=width, blocks=blocks, heads=heads, ffn=ffn, rows=rows, context=context, grid=given.grid, half=blocks // 2,
            trained=min(given.grid * given.grid, 6 * given.grid),
        ))
        runs.untrained(given.dipaco, run, config)
        runs.run(given.dipaco, "train", "--run", run, "--workers", 1)
        (run / "served").touch()
    return run


class Server:
    """A server of a run."""

    def __init__(self, dipaco, run, *words):
        self.log = pathlib.Path(tempfile.NamedTemporaryFile(prefix="dipaco-serve-", suffix=".log", delete=False).name)
        self.process = runs.Process(self.log, [dipaco, "serve", "--run", run, "--address", "127.0.0.1:0", *words])
        # It says so when it is ready.
        while not (found := re.search(r"serving (\S+) at (http://\S+)", self.log.read_text())):
            if self.process.ended():
                sys.exit(f"the server ended:\n{self.log.read_text()}")
            time.sleep(0.1)
        self.name, self.url = found.groups()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        runs.end(self.process)

    def info(self):
        with urllib.request.urlopen(self.url + "/info", timeout=60) as reply:
            return json.load(reply)

    def metric(self, name):
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith((name + " ", name + "{")))

    def resident(self, kind="VmRSS"):
        """The resident memory in MiB: all of it, or one kind of /proc/PID/status."""
        lines = open(f"/proc/{self.process.child.pid}/status").read().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))

    def post(self, address, fields):
        body, headers = json.dumps(fields).encode(), {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + address, body, headers), timeout=600) as reply:
            return json.load(reply)

    def stream(self, prompt, max_tokens, **fields):
        """Sends a request; returns its time and the times of its tokens, in seconds of the monotonic clock."""
        # With log-probabilities each token is an event, also one that completes no character.
        fields |= {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": True, "logprobs": 0}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(fields).encode(), {"content-type": "application/json"}
        )
        times = [time.monotonic()]
        with urllib.request.urlopen(request, timeout=600) as reply:
            for line in reply:
                if line.startswith(b'data: {"error"'):
                    sys.exit(f"a stream failed: {line.decode()}")
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
        return times


def start_load(dipaco, url, *words):
    """Starts `dipaco bench serve`. Its standard output is JSON."""
    words = [dipaco, "bench", "serve", "--quiet", "--url", url, "--json", *words]
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)


def setting(given, **values):
    """The words that set these keys of `[serve]`, and those of --set."""
    words = runs.settings({f"serve.{key}": value for key, value in values.items()})
    return [*words, *(word for one in given.set for word in ("--set", one))]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
