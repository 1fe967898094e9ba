#!/usr/bin/env python3
"""The work of each part of `dipaco prepare` and `dipaco route assign`, and of the last command, which lists their files.

    scripts/bench-parts.py --dipaco target/release/dipaco --parts 1 8 --copies 4 TEXT...

TEXT are C4 files (*.json.gz). With `--copies` each is read as often, under as many names. The parts run in turn, as if each
had this machine for itself. Prints the processor seconds of each step as a table, because other programs disturb them less
than the clock, and with --json every time. Checks that all numbers of parts give the same token sets and the same shards,
byte for byte.
"""

import hashlib
import json
import os
import pathlib
import resource
import shutil
import tempfile
import time

from runs import parser, run, settings

# The seed is no subject here. The sample of the router is the same work for any text.
SETTINGS = {"seed_model.steps": 2, "routing.sample_documents": 10000}


def copies(texts, number, folder):
    """Each text under `number` names."""
    names = []
    for copy in range(number):
        for text in texts:
            names.append(folder / f"{copy}-{text.name}")
            os.link(text, names[-1]) if text.stat().st_dev == folder.stat().st_dev else shutil.copy(text, names[-1])
    return names


def timed(*words):
    """Seconds of the processors, and of the clock."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start = used(), time.perf_counter()
    run(*words)
    return used() - start[0], time.perf_counter() - start[1]


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
    times = {"tokenizer": [timed(*prepare, "--tokenizer-only", *texts)]}
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


def main():
    options = parser(__doc__)
    options.add_argument("--config", type=pathlib.Path, default="configs/tiny.toml")
    options.add_argument("--parts", type=int, nargs="+", default=[1, 8])
    options.add_argument("--copies", type=int, default=1)
    options.add_argument("--json", action="store_true")
    options.add_argument("texts", type=lambda path: pathlib.Path(path).resolve(), nargs="+")
    given = options.parse_args()
    measured, hashes = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text").mkdir()
        texts = copies(given.texts, given.copies, folder / "text")
        for parts in given.parts:
            times, sizes, found = measure(given.dipaco, given.config, texts, parts, folder / f"run-{parts}")
            measured[parts] = times
            hashes.add(found)
            shutil.rmtree(folder / f"run-{parts}")
    if given.json:
        print(json.dumps({"sizes": sizes, "same": len(hashes) == 1, "seconds": measured}))
    print(f"{len(texts)} files, " + ", ".join(f"{number} {name}" for name, number in sizes.items()))
    print("| processor seconds | " + " | ".join(f"{parts} parts" for parts in measured) + " |")
    print("|---|" + "--:|" * len(measured))
    for step in measured[given.parts[0]]:
        row = [max(processor for processor, _ in times[step]) for times in measured.values()]
        name = f"`{step}`, the slowest" if "--part" in step else f"`{step}`"
        print(f"| {name} | " + " | ".join(f"{seconds:.2f}" for seconds in row) + " |")
    print("same bytes for all numbers of parts:", "yes" if len(hashes) == 1 else "NO")
    raise SystemExit(len(hashes) != 1)


if __name__ == "__main__":
    main()
