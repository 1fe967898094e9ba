#!/usr/bin/env python3
"""A server beside a training: takes up many rounds under load, and counts failed and mixed answers and its memory.

    scripts/hot-reload.py --dipaco target/release/dipaco --rounds 100
    scripts/hot-reload.py --dipaco target/release/dipaco --rounds 100 --memory paths=1

A run of 2 x 2 paths trains with two workers, a few inner steps a round. Beside it `dipaco serve` takes up its rounds, while
clients ask without a pause, each for six equal prompts with one seed on one path. An answer is mixed if its six texts or their
log-probabilities differ, or if one fingerprint and path has two texts. The script ends when the answers have named --rounds
versions of the weights. --memory paths=N sets serve.memory to the size of N paths. Prints the resident memory of the server
every few seconds, the bytes of its modules, and one JSON object at the end. Exits with 1 when an answer failed or was mixed.
"""

import collections
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from runs import CORPUS, Process, end, levels, parser, settings, untrained
from serving import Server

CONFIG = """
[run]
name = "reload"

[model]
hidden_size = {width}
blocks = 4
heads = {heads}
head_dim = 64
ffn_size = {ffn}
context = 64
""" + levels(2, 2) + """
[prepare]
vocab_size = 384
text_document_bytes = 1024
validation_fraction = 0.05

[seed_model]
steps = 2
batch = 4
sequence_tokens = 64
validate_every = 0

[routing]
restarts = 2

[train]
rounds = 1000000
inner_steps = 2
batch = 2
sequence_tokens = 64
holdout_sequences = 4
validate_every = 0
"""


class Load:
    """Clients that ask until they are stopped."""

    def __init__(self, base, clients):
        self.base, self.stopped, self.lock = base, threading.Event(), threading.Lock()
        self.answers, self.failed, self.mixed = 0, [], []
        self.versions = collections.OrderedDict()
        self.threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def ask(self, number):
        path = number % 4
        fields = {
            "model": f"reload/path-{path}", "prompt": ["fn main() {"] * 6, "max_tokens": 24, "ignore_eos": True, "seed": 7,
            "logprobs": 0,
        }
        body, headers = json.dumps(fields).encode(), {"content-type": "application/json"}
        while not self.stopped.is_set():
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(f"{self.base}/v1/completions", body, headers), timeout=600
                ) as reply:
                    answer = json.load(reply)
            except (urllib.error.URLError, OSError, ValueError) as error:
                with self.lock:
                    self.failed.append(f"path {path}: {error}")
                continue
            texts = {json.dumps([c["text"], c["logprobs"]["token_logprobs"]]) for c in answer["choices"]}
            with self.lock:
                self.answers += 1
                known = self.versions.setdefault(answer["system_fingerprint"], {})
                if len(texts) != 1 or known.setdefault(path, texts) != texts:
                    self.mixed.append(answer)

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def main():
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--clients", type=int, default=4)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--memory", metavar="paths=N", help="sets serve.memory")
    options.add_argument("--every", type=float, default=5, help="seconds between two lines")
    options = options.parse_args()
    dipaco, folder = options.dipaco, pathlib.Path(tempfile.mkdtemp(prefix="hot-reload-"))
    run_folder, config = folder / "run", folder / "reload.toml"
    config.write_text(CONFIG.format(width=options.width, heads=options.width // 64, ffn=4 * options.width))
    untrained(dipaco, run_folder, config, CORPUS)
    train = Process(folder / "train.log", [dipaco, "train", "--run", run_folder, "--workers", 2])
    while "rounds" not in (folder / "train.log").read_text() and not train.ended():
        time.sleep(0.2)
    time.sleep(2)
    words = settings({"serve.reload_seconds": 0.2})
    if options.memory:
        # The first path alone tells its size.
        with Server(dipaco, run_folder, *settings({"serve.preload": "none"})) as probe:
            limit = probe.info()["weight_bytes"] * int(options.memory.removeprefix("paths="))
        words += settings({"serve.memory": limit})
    server = Server(dipaco, run_folder, *words)
    load, sizes, most, begun = Load(server.url, options.clients), [], 0, time.monotonic()
    try:
        while len(load.versions) < options.rounds:
            time.sleep(options.every)
            found, size = server.info(), server.resident()
            sizes.append(size)
            most = max(most, found["weight_bytes"])
            line = {
                "seconds": round(time.monotonic() - begun), "versions": len(load.versions), "answers": load.answers,
                "resident MiB": round(size, 1), "modules MiB": round(found["weight_bytes"] / 2**20, 1),
            }
            print(json.dumps(line), flush=True)
            if train.ended() or server.process.ended():
                sys.exit(f"a process has ended: {folder}")
    finally:
        load.stop()
        end(train, server.process)
    third = max(1, len(sizes) // 3)
    print(json.dumps({
        "versions": len(load.versions),
        "answers": load.answers,
        "failed": len(load.failed),
        "mixed": len(load.mixed),
        "limit of modules MiB": options.memory and round(limit / 2**20, 1),
        "most modules MiB": round(most / 2**20, 1),
        "resident MiB, medians of the thirds": [
            round(statistics.median(part), 1) for part in (sizes[:third], sizes[third:-third] or sizes, sizes[-third:])
        ],
    }))
    for failure in load.failed[:5]:
        print(failure, file=sys.stderr)
    sys.exit(1 if load.failed or load.mixed else 0)


if __name__ == "__main__":
    main()
