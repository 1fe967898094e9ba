#!/usr/bin/env python3
"""Extension by left-out domains: trains a run without some domains, extends it by a path for each, and compares three runs.

    scripts/extend-domains.py --train corpus/train --validation corpus/validation --labels domains.jsonl.gz \\
        --leave-out latin law --config configs/small.toml --seeds 1 2 3 --out runs/extend

The labels are JSON lines with `url` and `domain`; the text is C4's json.gz. For each seed:

old   trained on the text without these domains
new   `old` with a path for each of them, which trains on their text alone. It begins as a copy of the path that `old`
      routes most of that domain to
all   trained on all domains from the start, with the settings of `old`

Each is evaluated by its own router on the validation text of all domains. The table has the bits per byte; OUT/results.json
has them by domain, and whether the old paths' weights are the same bits in `new`. A repeated call goes on with the runs
that are not complete.
"""

import gzip
import json
import pathlib
import statistics

import runs


def divide(folder, domains, left_out, out):
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


def labels(file):
    """The domain of each document by its url."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return {label["url"]: label["domain"] for label in map(json.loads, lines)}


class Comparison:
    """The three runs of one seed."""

    def __init__(self, options, seed):
        self.options = options
        self.folder = options.out / f"seed-{seed}"
        self.settings = [word for setting in [*options.set, f"run.seed={seed}"] for word in ("--set", setting)]

    def dipaco(self, command, name, *words):
        """Runs a command of the program on one of the runs; returns its standard output."""
        return runs.run(self.options.dipaco, *command.split(), "--run", self.folder / name, *words)

    def train(self, name, *commands):
        """Runs the commands that come first, divides the text among the paths, and trains them."""
        for command in (*commands, "route fit", "route assign"):
            self.dipaco(command, name)
        self.dipaco("train", name, "--workers", self.options.workers)

    def routed(self, name):
        """The evaluation of the routed model, with its domains."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            made = self.dipaco("evaluate", name, "--labels", self.options.labels, "--no-seed", "--json")
            part = file.with_suffix(".part")
            part.write_text(made, encoding="utf-8")
            part.rename(file)
        (found,) = [found for found in json.loads(file.read_text(encoding="utf-8")) if found["model"] == "routed"]
        return found

    def begin(self, name, text):
        """Trains a run from the start, unless it is evaluated already."""
        if not (self.folder / f"{name}.json").exists():
            words = ["--config", self.options.config, *self.settings, *text, "--validation", self.options.validation]
            self.dipaco("prepare", name, *words)
            self.train(name, "seed")
        return self.routed(name)

    def extend(self, old):
        """Extends the old run by a path for each left-out domain."""
        if not (self.folder / "new.json").exists():
            usual = {domain["domain"]: domain["documents_of_path"] for domain in old["per_domain"]}
            copied = [usual[domain].index(max(usual[domain])) for domain in self.options.leave_out]
            copies = [word for path in copied for word in ("--add", path)]
            level = ["--level", self.options.level] if self.options.level else []
            self.dipaco("extend", "new", "--from", self.folder / "old", *copies, *level)
            self.dipaco("prepare", "new", self.options.out / "text/new", "--validation", self.options.validation)
            self.train("new")
        return self.routed("new")

    def same_weights(self, paths):
        """Whether each old path has the same bits in the extended run."""
        same = []
        for path in range(paths):
            weights = []
            for name in ("old", "new"):
                out = self.folder / "exported" / f"{name}-{path}"
                self.dipaco("export", name, "--path", path, "--out", out, "--force")
                weights.append((out / "model.safetensors").read_bytes())
            same.append(weights[0] == weights[1])
        return same

    def results(self):
        """Trains what is left to train, and compares."""
        old = self.begin("old", [self.options.out / "text/kept"])
        new = self.extend(old)
        everything = self.begin("all", [self.options.train])
        paths = len(old["per_domain"][0]["documents_of_path"])
        named = {"old": old, "new": new, "all": everything}
        return {
            "bits_per_byte": {name: found["bits_per_byte"] for name, found in named.items()},
            "domains": {
                domain["domain"]: {
                    name: next(d["bits_per_byte"] for d in found["per_domain"] if d["domain"] == domain["domain"])
                    for name, found in named.items()
                }
                for domain in old["per_domain"]
            },
            "same_weights": self.same_weights(paths),
        }


def print_table(results, left_out):
    """Prints the bits per byte of all seeds: of each left-out domain, of the mean of the others, and of all text."""
    print("| seed | text | old | new | all |\n|--:|---|--:|--:|--:|")
    for seed, result in results.items():
        domains = result["domains"]
        others = [numbers for domain, numbers in domains.items() if domain not in left_out]
        rows = {domain: domains[domain] for domain in left_out}
        rows["mean of the other domains"] = {run: statistics.fmean(o[run] for o in others) for run in ("old", "new", "all")}
        rows["all text"] = result["bits_per_byte"]
        for text, numbers in rows.items():
            print(f"| {seed} | {text} | {numbers['old']:.3f} | {numbers['new']:.3f} | {numbers['all']:.3f} |")
        same = result["same_weights"]
        print(f"seed {seed}: {sum(same)} of {len(same)} old paths have the same bits in the extended run")


def main():
    """Divides the text, trains the runs of each seed, and writes the results."""
    parser = runs.parser(__doc__)
    for name in ("--train", "--validation", "--labels", "--config", "--out"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--leave-out", nargs="+", required=True, metavar="DOMAIN")
    parser.add_argument("--level", help="the level of the new modules; all by default")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the configuration")
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    domains = labels(options.labels)
    unknown = set(options.leave_out) - set(domains.values())
    if unknown:
        raise SystemExit(f"no document has the domain {', '.join(sorted(unknown))}")
    divide(options.train, domains, set(options.leave_out), options.out / "text")
    results = {seed: Comparison(options, seed).results() for seed in options.seeds}
    (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print_table(results, options.leave_out)


if __name__ == "__main__":
    main()
