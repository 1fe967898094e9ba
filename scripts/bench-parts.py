#!/usr/bin/env python3
"""The time of each part of `dipaco prepare` and `dipaco route assign`, and of the steps that stay whole.

    scripts/bench-parts.py --dipaco target/release/dipaco --parts 1,8 --copies 4 TEXT...

TEXT are C4 files (*.json.gz). With `--copies` each is read as often, under as many names. The parts run one after the other, as
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
import subprocess
import tempfile
import time

from runs import ROOT, parser, run, settings

# The seed is no subject here. The sample of the router is the same work for any text.
SETTINGS = {"seed_model.steps": 2, "routing.sample_documents": 10000}
# Steps, and whether they are divided into parts.
PREPARE = {"prepare --tokenizer-only": False, "prepare --part": True, "prepare": False}
ASSIGN = {"route fit": False, "route assign --part": True, "route assign": False}


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


def measure(dipaco, config, texts, parts, folder):
    """Times of all commands in a new run, and the hash of its text and shards."""
    here, quiet = ["--run", folder], [dipaco, "--quiet"]
    prepare = [*quiet, "prepare", *here, "--config", config, *settings(SETTINGS)]
    assign = [*quiet, "route", "assign", *here]
    numbers = [f"{part}/{parts}" for part in range(1, parts + 1)]
    times = {"prepare --tokenizer-only": [timed(*prepare, "--tokenizer-only", *texts)]}
    times["prepare --part"] = [timed(*prepare, "--part", number, *texts) for number in numbers]
    times["prepare"] = [timed(*prepare, *texts)]
    run(*quiet, "seed", *here)
    times["route fit"] = [timed(*quiet, "route", "fit", *here)]
    times["route assign --part"] = [timed(*assign, "--part", number) for number in numbers]
    times["route assign"] = [timed(*assign)]
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
    for name, steps in {"prepare": PREPARE, "assign": ASSIGN}.items():
        for step, divided in steps.items():
            pairs = [longest(times, step) for times in measured.values()]
            row(f"`{step}`, the longest part" if divided else f"`{step}`", pairs)
            work = [pair[1] for _, pair in sorted(zip(measured, pairs))]
            falls &= not divided or work == sorted(work, reverse=True)
        row(f"**{name} in all**", [in_all(times, steps) for times in measured.values()])
    return falls


def main():
    options = parser(__doc__)
    options.add_argument("--config", type=pathlib.Path, default=ROOT / "configs/tiny.toml")
    numbers = lambda text: [int(number) for number in text.split(",")]
    options.add_argument("--parts", type=numbers, default=[1, 8], help="numbers of parts to compare; 1,8 is the default")
    options.add_argument("--copies", type=int, default=1)
    options.add_argument("--json", action="store_true", help="print every time too")
    options.add_argument("texts", type=lambda path: pathlib.Path(path).resolve(), nargs="+")
    given = options.parse_args()
    measured, hashes = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text").mkdir()
        texts = copies(given.texts, given.copies, folder / "text")
        read = sum(text.stat().st_size for text in texts)
        for parts in given.parts:
            times, sizes, found = measure(given.dipaco, given.config, texts, parts, folder / f"run-{parts}")
            measured[parts] = times
            hashes.add(found)
            shutil.rmtree(folder / f"run-{parts}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    print(f"commit {commit}, {os.cpu_count()} processors: {len(texts)} files of {read / 1e6:.0f} MB compressed, "
          + ", ".join(f"{number:,} {name}" for name, number in sizes.items() if name != "files")
          + f", {sizes['files']:,} token files\n")
    falls, same = page(measured), len(hashes) == 1
    print(f"\nsame bytes for all numbers of parts: {'yes' if same else 'NO'}")
    print(f"every divided step takes less time with more parts: {'yes' if falls else 'NO'}")
    if given.json:
        print(json.dumps({"seconds": measured}))
    raise SystemExit(not (same and falls))


if __name__ == "__main__":
    main()
