#!/usr/bin/env python3
"""Measures the memory of a coordinator that takes all outer steps by itself, and of one with synchronizers.

    scripts/split-memory.py --dipaco target/release/dipaco

Two levels of --modules modules each, --hidden columns, synchronous and in f32, trained by two workers for two rounds of two
steps: without a synchronizer, with one for the modules of the first level, and with one for each level. Prints JSON:
MiB of all modules' weights and momenta, and the most resident memory of each process in MiB. Linux only.
"""

import json
import pathlib
import shutil
import tempfile
import time

from runs import CORPUS, Led, bits, end, levels, parser, run, untrained


def config(hidden, modules):
    return f"""
[prepare]
vocab_size = 4096
text_document_bytes = 1024

[model]
hidden_size = {hidden}
blocks = 4
heads = {hidden // 64}
head_dim = 64
ffn_size = {hidden * 3}
context = 32
{levels(modules, modules)}
[seed_model]
steps = 2
batch = 1
sequence_tokens = 32

[train]
rounds = 2
inner_steps = 2
batch = 1
sequence_tokens = 32
held_paths = {modules * modules}
state_every = 100

[routing]
prefix_tokens = 8

[evaluation]
prefix_tokens = 8
"""


def train(dipaco, folder, run_folder, elsewhere):
    led = Led(dipaco, folder, run_folder)
    synchronizers = [led.synchronizer(f"level-{level}", str(level)) for level in elsewhere]
    workers = [led.worker(f"w{number}") for number in range(2)]
    watched = [led.leader, *synchronizers]
    most = [0.0] * len(watched)
    while not led.finished():
        most = [max(before, process.most_resident() or 0.0) for before, process in zip(most, watched)]
        time.sleep(0.05)
    end(*synchronizers, *workers)
    return {"coordinator": round(most[0]), "synchronizers": [round(value) for value in most[1:]]}


def main():
    options = parser(__doc__)
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--modules", type=int, default=8)
    options.add_argument("--text", default=CORPUS)
    options = options.parse_args()
    dipaco = options.dipaco
    folder = pathlib.Path(tempfile.mkdtemp(prefix="split-memory-"))
    (folder / "config.toml").write_text(config(options.hidden, options.modules))
    fresh = folder / "fresh"
    untrained(dipaco, fresh, folder / "config.toml", options.text)
    result, ends = {}, []
    for name, elsewhere in (("alone", []), ("one level elsewhere", [0]), ("both levels elsewhere", [0, 1])):
        logs, run_folder = folder / f"logs-{len(elsewhere)}", folder / f"run-{len(elsewhere)}"
        logs.mkdir()
        shutil.copytree(fresh, run_folder, symlinks=True)
        result[name] = train(dipaco, logs, run_folder, elsewhere)
        training = json.loads(run(dipaco, "status", "--json", "--run", run_folder))["training"]
        fragments = [fragment for module in training["modules"] for fragment in module["fragments"]]
        objects = [fragment[part] for fragment in fragments for part in ("weights", "momentum")]
        result["weights and momenta"] = round(sum(item["bytes"] for item in objects) / 2**20)
        ends.append(bits(dipaco, run_folder))
        shutil.rmtree(run_folder)
    result["same bits"] = all(found == ends[0] for found in ends)
    print(json.dumps(result, indent=2))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
