#!/usr/bin/env python3
"""Documents a second of `dipaco route features` and `route assign`, by the source of the features, and what a large corpus takes.

    scripts/bench-routing.py --dipaco target/release/dipaco [--repeats 3] [--device cpu] TEXT...

TEXT are files or folders that `dipaco prepare` takes, with at least 11,000 documents for training. The sources are LSA, a seed of 1.4M
parameters (the model of configs/quickstart.toml), and the shape of a model of 135M parameters (configs/smollm2-2x2.toml) with its
first 6 blocks and with all 30. Weights are random: the time does not depend on them.

The rate of features is the difference of two samples of different sizes, so the start of the program and the reading of the weights
are not in it. The median of the repeats counts. `route assign` is timed as a whole where it takes
less than a minute; its rate includes the start. Rates are by the clock. In brackets stand documents by second of all processors, which
other programs disturb less.

Prints a table of the measured rates, a table of arithmetic with them (the sample of `route fit`, and 365 million documents for
`route assign`, each divided by rate and machines), and a JSON line with every time.
"""

import json
import os
import pathlib
import resource
import shutil
import statistics
import tempfile
import time

from runs import ROOT, commit, parser, run, settings

QUICKSTART, SMOLLM2 = "configs/quickstart.toml", "configs/smollm2-2x2.toml"
SEED = {"routing.features": "seed"}
# Name, configuration, settings, the sizes of both samples if features are timed, and whether `route assign` is timed.
SOURCES = [
    # Most of its time is the fit of token vectors on a sample of bounded size, so a rate of its features means nothing.
    ("LSA", QUICKSTART, {}, None, True),
    ("seed of 1.4M parameters, 4 of 4 blocks", QUICKSTART, {**SEED, "routing.feature_blocks": 4}, (1000, 11000), True),
    ("shape of 135M parameters, 6 of 30 blocks", SMOLLM2, {**SEED, "routing.feature_blocks": 6}, (64, 704), False),
    ("shape of 135M parameters, 30 of 30 blocks", SMOLLM2, {**SEED, "routing.feature_blocks": 30}, (64, 320), False),
]
# Documents of C4 in English, and the default of routing.sample_documents.
CORPUS, SAMPLE, MACHINES = 365e6, 100e3, (1, 10, 100)


def seconds(*words):
    """Seconds by the clock, and of all processors."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    start = time.perf_counter(), used()
    run(*words)
    return time.perf_counter() - start[0], used() - start[1]


def prepared(dipaco, config, texts, folder):
    """A run with tokens and an untrained seed."""
    here = ["--run", folder]
    run(dipaco, "--quiet", "prepare", *here, "--config", ROOT / config, *settings({"seed_model.steps": 0}), *texts)
    run(dipaco, "--quiet", "seed", *here)
    report = json.loads((folder / "data/report.json").read_text())
    return report["train"]["documents"]


def features(dipaco, folder, chosen, documents):
    """Seconds for features of a sample."""
    shutil.rmtree(folder / "routing", ignore_errors=True)
    words = settings({**chosen, "routing.sample_documents": documents})
    return seconds(dipaco, "--quiet", "route", "features", "--run", folder, *words)


def assign(dipaco, folder, chosen):
    """Seconds for dividing the text among four paths."""
    shutil.rmtree(folder / "routing", ignore_errors=True)
    words = settings({**chosen, "routing.sample_documents": 1000})
    run(dipaco, "--quiet", "route", "fit", "--run", folder, *words)
    return seconds(dipaco, "--quiet", "route", "assign", "--run", folder)


def duration(hours):
    """Days, hours, minutes or seconds, whatever is readable."""
    if hours >= 72:
        return f"{hours / 24:,.1f} days"
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours * 60 >= 1 else f"{hours * 3600:.0f} s"


def measure(given):
    """For each source of features its rates, by the clock and by processor, and all times."""
    rows = []
    with tempfile.TemporaryDirectory() as parent:
        runs = {config: pathlib.Path(parent) / str(number) for number, config in enumerate((QUICKSTART, SMOLLM2))}
        documents = {config: prepared(given.dipaco, config, given.texts, folder) for config, folder in runs.items()}
        for name, config, chosen, samples, divides in SOURCES:
            rates, pairs = None, []
            if samples:
                small, large = samples
                if documents[config] < large:
                    raise SystemExit(f"{name} needs {large:,} documents and the text has {documents[config]:,}: give more text")
                sizes = [samples] * given.repeats
                pairs = [[features(given.dipaco, runs[config], chosen, size) for size in pair] for pair in sizes]
                rates = [(large - small) / statistics.median(most[at] - least[at] for least, most in pairs) for at in (0, 1)]
            whole = assign(given.dipaco, runs[config], chosen) if divides else None
            rows.append({"source": name, "rates": rates, "assign": whole and [documents[config] / time for time in whole],
                         "samples": samples, "seconds": pairs, "documents": documents[config]})
    return rows


def main():
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--device", default="cpu", help="as for `dipaco route features`")
    options.add_argument("texts", type=lambda path: pathlib.Path(path).resolve(), nargs="+")
    given = options.parse_args()
    os.environ["DIPACO_DEVICE"] = given.device
    rows = measure(given)
    print(f"commit {commit()}, {os.cpu_count()} processors, --device {given.device}\n")
    print("| features | `route features`, documents/s | `route assign`, documents/s |\n|---|--:|--:|")
    pair = lambda rates: f"{rates[0]:,.1f} ({rates[1]:,.1f})" if rates else "–"
    for row in rows:
        print(f"| {row['source']} | {pair(row['rates'])} | {pair(row['assign'])} |")
    print("\n| step, features | " + " | ".join(f"{machines} machine{'s' * (machines > 1)}" for machines in MACHINES) + " |")
    print("|---|" + "--:|" * len(MACHINES))
    for step, count in (("route features --part", SAMPLE), ("route assign --part", CORPUS)):
        for row in rows:
            rates = row["assign"] or row["rates"] if count == CORPUS else row["rates"]
            if rates is None:
                continue
            rate = rates[0]
            times = (duration(count / rate / machines / 3600) for machines in MACHINES)
            print(f"| `{step}`, {row['source']} | " + " | ".join(times) + " |")
    print("\n" + json.dumps({"every": rows}))


if __name__ == "__main__":
    main()
