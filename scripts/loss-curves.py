#!/usr/bin/env python3
"""Draws the losses of runs that differ in one thing, and says how far apart they end.

    scripts/loss-curves.py f32=runs/f32/metrics.jsonl bf16=runs/bf16/metrics.jsonl --out loss-f32-bf16 --limit 0.5

Writes OUT.png and OUT.svg: training loss (mean over --smooth steps) and validation loss against steps, and below them
the difference of the validation losses from the first run's, in percent. Prints the last validation losses and their
differences as a Markdown table; with --limit the exit code is 1 when a difference is larger, in either direction.

Reads what docs/metrics.md describes. Of a seed: `seed_step` and `seed_validated`. Where there is none, of the paths'
training: the mean over the paths of `inner_step`, and of the `heldout_loss` of `path_completed`, which belongs to the
weights at the start of its round. A step that a run did twice, because it was killed, counts as it was last.

Needs matplotlib; without --out nothing but Python.
"""
import collections
import json
import pathlib
import statistics
import sys

from runs import parser


def arguments():
    p = parser(__doc__, dipaco=None)
    p.add_argument("runs", nargs="+", metavar="NAME=FILE",
                   help="a run's name and its metrics.jsonl; the first is the reference")
    p.add_argument("--out", type=pathlib.Path, help="path of the figures without its ending")
    p.add_argument("--smooth", type=int, default=20, help="steps of a point of the training loss (default 20)")
    p.add_argument("--limit", type=float, help="the largest difference in percent that is allowed")
    p.add_argument("--title", default="")
    a = p.parse_args()
    if a.smooth < 1:
        p.error("--smooth must be at least 1")
    for run in a.runs:
        if "=" not in run:
            p.error(f"{run!r} is not NAME=FILE")
    return a


def events(file):
    """The lines that parse: a killed process may leave a cut one."""
    try:
        lines = pathlib.Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        sys.exit(f"{file} can't be read: {error}")
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def losses(file):
    """Training and validation loss by step."""
    seed, validated = {}, {}
    inner, held_out, last_step = {}, {}, {}
    for event in events(file):
        kind = event.get("event")
        if kind == "seed_step":
            seed[event["step"]] = event["loss"]
        elif kind == "seed_validated":
            validated[event["step"]] = event["loss"]
        elif kind == "inner_step":
            inner[event["step"], event["path"]] = event["loss"]
            last_step[event["path"], event["round"]] = event["step"]
        elif kind == "path_completed" and "heldout_loss" in event:
            held_out[event["path"], event["round"]] = event["heldout_loss"]
    if not seed:
        at_start = {(last_step.get((path, number - 1), 0), path): loss for (path, number), loss in held_out.items()}
        seed, validated = mean_over_paths(inner), mean_over_paths(at_start)
    finite = lambda by_step: {step: loss for step, loss in sorted(by_step.items()) if loss is not None}
    if not seed or not finite(validated):
        sys.exit(f"{file} has no training or no validation loss")
    return finite(seed), finite(validated)


def mean_over_paths(by_step_and_path):
    by_step = collections.defaultdict(list)
    for (step, _), loss in by_step_and_path.items():
        by_step[step].append(loss)
    return {step: statistics.fmean(values) for step, values in by_step.items() if None not in values}


def smoothed(by_step, width):
    items = list(by_step.items())
    groups = [items[i:i + width] for i in range(0, len(items), width)]
    return [group[-1][0] for group in groups], [statistics.fmean(loss for _, loss in group) for group in groups]


def percent(loss, reference):
    return (loss / reference - 1) * 100


def draw(runs, out, smooth, title):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dipaco"
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=(3, 1), layout="constrained")
    styles = ["-", "--", ":", "-."]
    reference = next(iter(runs.values()))[1]
    for i, (name, (training, validation)) in enumerate(runs.items()):
        color, style = f"C{i}", styles[i % len(styles)]
        top.plot(*smoothed(training, smooth), style, color=color, alpha=0.45, linewidth=1, label=f"{name}, training")
        top.plot(*zip(*validation.items()), style, color=color, marker="o", markersize=3, label=f"{name}, validation")
        shared = {step: percent(loss, reference[step]) for step, loss in validation.items() if step in reference}
        bottom.plot(*zip(*shared.items()), style, color=color, marker="o", markersize=3)
    top.set(ylabel="loss, nats per token", title=title)
    top.legend()
    top.grid(alpha=0.3)
    bottom.set(xlabel="step", ylabel=f"validation,\n% from {next(iter(runs))}")
    bottom.grid(alpha=0.3)
    figure.savefig(f"{out}.png", dpi=120)
    figure.savefig(f"{out}.svg", metadata={"Date": None})


def main():
    a = arguments()
    runs = {}
    for run in a.runs:
        name, file = run.split("=", 1)
        runs[name] = losses(file)
    shared = set.intersection(*(set(validation) for _, validation in runs.values()))
    if not any(shared):
        sys.exit("the runs have no step in common at which all were validated")
    last = max(shared)
    for name, (training, validation) in runs.items():
        if max(training) != last or max(validation) != last:
            print(f"note: {name} goes on to step {max(*training, *validation)}; compared at {last}", file=sys.stderr)
    reference = next(iter(runs.values()))[1]
    # The first half is left out of the worst: there the losses fall fast.
    later = [step for step in shared if 2 * step >= last]
    print(f"| run | validation loss after {last} steps | difference | largest from step {min(later)} on |")
    print("| --- | --: | --: | --: |")
    apart = 0.0
    for name, (_, validation) in runs.items():
        difference = percent(validation[last], reference[last])
        worst = max((percent(validation[step], reference[step]) for step in later), key=abs)
        print(f"| {name} | {validation[last]:.4f} | {difference:+.3f} % | {worst:+.3f} % |")
        apart = max(apart, abs(difference))
    if a.out:
        draw(runs, a.out, a.smooth, a.title)
    if a.limit is not None and apart > a.limit:
        sys.exit(f"{apart:.3f} % is more than {a.limit} %")


main()
