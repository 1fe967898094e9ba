#!/usr/bin/env python3
"""Extension by left-out domains: trains a run without some domains, extends it by a path for each of them, and evaluates that.

    scripts/extend-domains.py --train corpus/train --validation corpus/validation --labels domains.jsonl.gz \\
        --leave-out latin law --config configs/small.toml --out runs/extend

The labels are JSON lines with `url` and `domain`; the text is C4's json.gz. The new paths begin as copies of the paths
of --add, or of path 0. Results: bits per byte on the validation text of the left-out domains for every old path and for
the extended run (OUT/results.json), and a comparison of the old paths' weights.
"""

import argparse
import gzip
import json
import subprocess
from pathlib import Path


def divide(folder: Path, domains: dict[str, str], left_out: set[str], out: Path) -> None:
    """Writes the documents of a folder to OUT/kept and OUT/new."""
    for part in ("kept", "new"):
        (out / part).mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob("*.json.gz")):
        with (
            gzip.open(file, "rt", encoding="utf-8") as lines,
            gzip.open(out / "kept" / file.name, "wt", encoding="utf-8") as kept,
            gzip.open(out / "new" / file.name, "wt", encoding="utf-8") as new,
        ):
            for line in lines:
                url = json.loads(line)["url"]
                if url not in domains:
                    raise SystemExit(f"{file}: the labels have no domain for {url}")
                (new if domains[url] in left_out else kept).write(line)


def labels(file: Path) -> dict[str, str]:
    """The domain of each document by its url."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return {label["url"]: label["domain"] for label in map(json.loads, lines)}


def main() -> None:
    """Divides the text, runs the steps, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--validation", "--labels", "--config", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--leave-out", nargs="+", required=True, metavar="DOMAIN")
    parser.add_argument("--add", nargs="+", type=int, metavar="PATH", help="the path that each new path is a copy of")
    parser.add_argument("--level", help="the level of the new modules; all by default")
    parser.add_argument("--dipaco", default="target/release/dipaco")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--divide-only", action="store_true", help="write the divided text and stop")
    options = parser.parse_args()
    domains = labels(options.labels)
    unknown = set(options.leave_out) - set(domains.values())
    if unknown:
        raise SystemExit(f"no document has the domain {', '.join(sorted(unknown))}")
    for part in ("train", "validation"):
        divide(getattr(options, part), domains, set(options.leave_out), options.out / "text" / part)
    if options.divide_only:
        return

    def dipaco(*words: str) -> str:
        command = [options.dipaco, *map(str, words)]
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout

    text, old, new = options.out / "text", options.out / "old", options.out / "new"
    config = ("--config", options.config)
    dipaco("prepare", "--run", old, *config, text / "train/kept", "--validation", text / "validation/kept")
    for step in (["seed"], ["route", "fit"], ["route", "assign"], ["train", "--workers", options.workers]):
        dipaco(*step, "--run", old)
    add = options.add or [0] * len(options.leave_out)
    level = ["--level", options.level] if options.level else []
    copies = [word for path in add for word in ("--add", path)]
    made = json.loads(dipaco("extend", "--run", new, "--from", old, *copies, *level, "--json"))
    dipaco("prepare", "--run", new, text / "train/new", "--validation", text / "validation/new")
    for step in (["route", "fit"], ["route", "assign"], ["train", "--workers", options.workers]):
        dipaco(*step, "--run", new)

    results = {"routed": json.loads(dipaco("evaluate", "--run", new, "--json")), "paths": {}, "same_weights": {}}
    for path in made["paths"]:
        number = path["path"]
        results["paths"][number] = json.loads(dipaco("evaluate", "--run", new, "--path", number, "--json"))
        if path["trained_modules"]:
            continue
        weights = []
        for run in (old, new):
            out = options.out / "exported" / f"{run.name}-{number}"
            dipaco("export", "--run", run, "--path", number, "--out", out, "--force")
            weights.append((out / "model.safetensors").read_bytes())
        results["same_weights"][number] = weights[0] == weights[1]
    (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
