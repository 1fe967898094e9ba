#!/usr/bin/env python3
"""The time of each part of `dipaco prepare` and `dipaco route`, and of the steps that stay whole.

    scripts/bench-parts.py --dipaco target/release/dipaco --parts 1,8 --copies 1,4 TEXT...
    scripts/bench-parts.py --dipaco target/release/dipaco --parts 1,8 --features seed --score TEXT...

TEXT are C4 files (*.json.gz). With `--copies` each is read as often, under as many names; there is a page for each number. With
`--features seed` a seed gives the features, and `route features` is divided too; the seed is untrained, which changes no time. With
`--score` the 16 paths take an inner step, and `route score` is divided: its unit is the path. The parts run one after the other, as
if each had this machine for itself. So the sum of a column is the time that so many machines of this kind need: the longest
part, and each step that one machine takes alone. The time on one machine is an estimate of nothing else: transfers between
machines are not in it.

Prints a page: seconds by the clock, and in brackets the seconds of all processors, which other programs disturb less. `--json`
adds every time. Checks that all numbers of parts give the same token sets and the same shards, byte for byte, and that the
longest part takes less time with more parts.
"""

import hashlib
import json
import os
import pathlib
import resource
import shutil
import tempfile
import time

from runs import ROOT, commit, levels, parser, run, settings

# The seed is no subject here. The sample of the router is the same work for any text.
SETTINGS = {"seed_model.steps": 0, "routing.sample_documents": 10000}
SEED = {"routing.features": "seed"}
# A phase of routing begins after the first round, and the paths score the reserved documents.
SCORE = {"routing.router_share": 0.002, "routing.phases": "[{round = 1}]", "train.rounds": 2, "train.inner_steps": 1,
         "train.batch": 1}
# The model of configs/quickstart.toml, so many paths that eight parts of them are equal.
CONFIG = """
[run]
name = "parts"

[model]
hidden_size = 128
blocks = 4
heads = 4
head_dim = 32
ffn_size = 384
context = 256

[train]
sequence_tokens = 256
""" + levels(4, 4)
# Steps, and whether they are divided into parts.
PREPARE = {"prepare --tokenizer-only": False, "prepare --part": True, "prepare": False}
FEATURES = {"route features --part": True}
ASSIGN = {"route fit": False, "route assign --part": True, "route assign": False}
SCORES = {"route score --part": True}


def copies(texts, number, folder):
    """Each text under `number` names."""
    names = []
    for copy in range(number):
        for text in texts:
            names.append(folder / f"{copy}-{text.name}")
            os.link(text, names[-1]) if text.stat().st_dev == folder.stat().st_dev else shutil.copy(text, names[-1])
    return names


def timed(*words):
    """Seconds of the clock and of the processors."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start = time.perf_counter(), used()
    run(*words)
    return time.perf_counter() - start[0], used() - start[1]


def bytes_of(folder, patterns):
    """Hash of the names and contents of files."""
    found = hashlib.blake2b()
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        found.update(str(file.relative_to(folder)).encode() + b"\0" + hashlib.blake2b(file.read_bytes()).digest())
    return found.hexdigest()


def measure(given, config, texts, parts, folder):
    """Times of all commands in a new run, and the hash of its text and shards."""
    here, quiet = ["--run", folder], [given.dipaco, "--quiet"]
    chosen = {**SETTINGS, **(SEED if given.features == "seed" else {}), **(SCORE if given.score else {})}
    if given.blocks is not None:
        chosen["routing.feature_blocks"] = given.blocks
    prepare = [*quiet, "prepare", *here, "--config", config, *settings(chosen)]
    assign = [*quiet, "route", "assign", *here]
    numbers = [f"{part}/{parts}" for part in range(1, parts + 1)]
    times = {"prepare --tokenizer-only": [timed(*prepare, "--tokenizer-only", *texts)]}
    times["prepare --part"] = [timed(*prepare, "--part", number, *texts) for number in numbers]
    times["prepare"] = [timed(*prepare, *texts)]
    run(*quiet, "seed", *here)
    if given.features == "seed":
        times["route features --part"] = [timed(*quiet, "route", "features", *here, "--part", number) for number in numbers]
    times["route fit"] = [timed(*quiet, "route", "fit", *here)]
    times["route assign --part"] = [timed(*assign, "--part", number) for number in numbers]
    times["route assign"] = [timed(*assign)]
    if given.score:
        run(*quiet, "train", *here, "--workers", 1, "--stop-at-phase")
        times["route score --part"] = [timed(*quiet, "route", "score", *here, "--part", number) for number in numbers]
    report = json.loads((folder / "data/report.json").read_text())
    sizes = {"documents": report["train"]["documents"], "tokens": report["train"]["tokens"],
             "files": len(list(folder.rglob("*.h5")))}
    patterns = ["data/*.h5", "data/pieces/*.h5", "data/train.json", "routing/*/path-*.json", "routing/*/path-*/*.h5",
                "routing/*/shards.json"]
    return times, sizes, bytes_of(folder, patterns)


def longest(times, step):
    """Seconds of the longest part by the clock, and of the part with the most work."""
    return tuple(max(time[place] for time in times[step]) for place in (0, 1))


def in_all(times, steps):
    """Seconds on as many machines as parts."""
    return tuple(sum(longest(times, step)[place] for step in steps) for place in (0, 1))


def page(measured):
    """The table, and whether every divided step takes less time with more parts."""
    print("| seconds | " + " | ".join(f"{parts} parts" if parts > 1 else "1 part" for parts in measured) + " |")
    print("|---|" + "--:|" * len(measured))
    row = lambda name, pairs: print(f"| {name} | " + " | ".join(f"{clock:.2f} ({work:.2f})" for clock, work in pairs) + " |")
    falls = True
    for name, steps in {"prepare": PREPARE, "route": {**FEATURES, **ASSIGN, **SCORES}}.items():
        steps = {step: divided for step, divided in steps.items() if all(step in times for times in measured.values())}
        for step, divided in steps.items():
            pairs = [longest(times, step) for times in measured.values()]
            row(f"`{step}`, the longest part" if divided else f"`{step}`", pairs)
            work = [pair[1] for _, pair in sorted(zip(measured, pairs))]
            falls &= not divided or work == sorted(work, reverse=True)
        row(f"**{name} in all**", [in_all(times, steps) for times in measured.values()])
    return falls


def compare(given, copied, folder):
    """Measures all numbers of parts on a text and prints their page; returns whether it shows what it should."""
    measured, hashes = {}, set()
    (folder / "text").mkdir()
    config = given.config or folder / "parts.toml"
    if not given.config:
        config.write_text(CONFIG)
    texts = copies(given.texts, copied, folder / "text")
    read = sum(text.stat().st_size for text in texts)
    for parts in given.parts:
        times, sizes, found = measure(given, config, texts, parts, folder / f"run-{parts}")
        measured[parts] = times
        hashes.add(found)
        shutil.rmtree(folder / f"run-{parts}")
    print(f"commit {commit()}, {os.cpu_count()} processors: {len(texts)} files of {read / 1e6:.0f} MB compressed, "
          + ", ".join(f"{number:,} {name}" for name, number in sizes.items() if name != "files")
          + f", {sizes['files']:,} token files, features \"{given.features}\"\n")
    falls, same = page(measured), len(hashes) == 1
    print(f"\nsame bytes for all numbers of parts: {'yes' if same else 'NO'}")
    print(f"every divided step takes less time with more parts: {'yes' if falls else 'NO'}\n", flush=True)
    if given.json:
        print(json.dumps({"copies": copied, "seconds": measured}))
    return same and falls


def main():
    options = parser(__doc__)
    options.add_argument("--config", type=pathlib.Path, help="a configuration; the default is 4 × 4 paths of the quickstart's model")
    numbers = lambda text: [int(number) for number in text.split(",")]
    options.add_argument("--parts", type=numbers, default=[1, 8], help="numbers of parts to compare; 1,8 is the default")
    options.add_argument("--copies", type=numbers, default=[1])
    options.add_argument("--features", choices=["lsa", "seed"], default="lsa", help="routing.features; lsa is the default")
    options.add_argument("--blocks", type=int, help="routing.feature_blocks with --features seed; 4 is the default")
    options.add_argument("--score", action="store_true", help="measure `route score` too")
    options.add_argument("--json", action="store_true", help="print every time too")
    options.add_argument("texts", type=lambda path: pathlib.Path(path).resolve(), nargs="+")
    given = options.parse_args()
    if given.features == "seed" and given.blocks is None:
        # A seed without training would otherwise give the mean of its token embeddings.
        given.blocks = 4
    right = True
    for copied in given.copies:
        with tempfile.TemporaryDirectory() as folder:
            right &= compare(given, copied, pathlib.Path(folder))
    raise SystemExit(not right)


if __name__ == "__main__":
    main()
