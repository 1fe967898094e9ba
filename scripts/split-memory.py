#!/usr/bin/env python3
"""How much memory a coordinator holds when it takes all outer steps by itself, and when synchronizers take them.

    scripts/split-memory.py --dipaco target/release/dipaco

Two levels of --modules modules each, --hidden columns, trained for two rounds of two steps by two workers, synchronous in f32: alone, with one
synchronizer for the modules of the first level, and with one for each level. Prints JSON: megabytes of all modules' weights
and momenta, and the most that each process was resident with. Linux only.
"""

import argparse
import json
import pathlib
import shutil
import tempfile
import time

from runs import Led, bits, end, run

ROOT = pathlib.Path(__file__).resolve().parent.parent


def config(hidden, modules):
    return f"""
[prepare]
vocab_size = 4096

[model]
hidden_size = {hidden}
blocks = 4
heads = {hidden // 64}
head_dim = 64
ffn_size = {hidden * 3}
context = 32

[[topology.levels]]
modules = {modules}
blocks = "0..2"
embedding = true

[[topology.levels]]
modules = {modules}
blocks = "2..4"
head = true

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


def train(dipaco, folder, run_folder, levels):
    led = Led(dipaco, folder, run_folder)
    synchronizers = [led.synchronizer(f"level-{level}", str(level)) for level in levels]
    workers = [led.worker(f"w{number}") for number in range(2)]
    watched = [led.leader, *synchronizers]
    most = [0.0] * len(watched)
    while not led.finished():
        most = [max(before, process.most_resident() or 0.0) for before, process in zip(most, watched)]
        time.sleep(0.05)
    end(*synchronizers, *workers)
    return {"coordinator": round(most[0]), "synchronizers": [round(value) for value in most[1:]]}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dipaco", default="target/release/dipaco")
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--modules", type=int, default=8)
    options.add_argument("--text", default=str(ROOT / "docs"))
    options = options.parse_args()
    dipaco = str(pathlib.Path(options.dipaco).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="split-memory-"))
    (folder / "config.toml").write_text(config(options.hidden, options.modules))
    fresh = folder / "fresh"
    run(dipaco, "prepare", options.text, "--run", fresh, "--config", folder / "config.toml")
    run(dipaco, "seed", "--run", fresh)
    run(dipaco, "route", "fit", "--run", fresh)
    run(dipaco, "route", "assign", "--run", fresh)
    result, ends = {}, []
    for name, levels in (("alone", []), ("one level elsewhere", [0]), ("both levels elsewhere", [0, 1])):
        logs, run_folder = folder / f"logs-{len(levels)}", folder / f"run-{len(levels)}"
        logs.mkdir()
        shutil.copytree(fresh, run_folder, symlinks=True)
        result[name] = train(dipaco, logs, run_folder, levels)
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
