#!/usr/bin/env python3
"""How fast lm-evaluation-harness scores a text through `dipaco serve`, compared with `dipaco evaluate` on the same text.

    scripts/lm-eval-rate.py --dipaco target/release/dipaco

Needs the Python clients of scripts/python.sh: run it with .venv/bin/python. Makes a run of one path whose weights hardly
trained, because the rate does not depend on them. The text is the frozen corpus of the tests, in documents of many windows.
Both sides read each of its tokens once, several times in turn. A side's time is that of scoring: `evaluate` without the
time that it takes for one document, the harness from its first request to its last. Prints the rates and their ratio.
"""

import gzip
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import urllib.request

from runs import CORPUS, Process, end, parser, run, seed_and_route, settings

CONFIG = """
[run]
name = "rate"

[model]
hidden_size = {width}
blocks = {blocks}
heads = {heads}
head_dim = 64
ffn_size = {ffn}
context = 512

[[topology.levels]]
modules = 1
blocks = "0..{blocks}"
embedding = true
head = true

[prepare]
vocab_size = 8192

[seed_model]
steps = 1
batch = 1
sequence_tokens = 64
validate_every = 0

[train]
rounds = 1
inner_steps = 1
batch = 1
sequence_tokens = 64
holdout_sequences = 1
"""
TASK = """
task: rate
dataset_path: json
dataset_kwargs: {data_files: {test: text.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""


def documents(folder, size):
    """Writes the corpus as documents of this many characters; for both sides."""
    text = "".join(gzip.open(file, "rt").read() for file in sorted(pathlib.Path(CORPUS).glob("*.txt.gz")))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    file = folder / "text.jsonl"
    file.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
    return file


def evaluate(dipaco, run_folder, *words):
    """Seconds of `dipaco evaluate`."""
    begun = time.monotonic()
    run(dipaco, "evaluate", "--run", run_folder, "--path", 0, "--json", *words)
    return time.monotonic() - begun


def tokens(base, text):
    """Tokens of a file of documents."""
    total = 0
    for line in text.read_text().splitlines():
        body = json.dumps({"prompt": json.loads(line)["text"]}).encode()
        request = urllib.request.Request(f"{base}/tokenize", body, {"content-type": "application/json"})
        total += json.load(urllib.request.urlopen(request))["count"]
    return total


def harness(base, folder, context):
    """Seconds in which the harness scores the documents."""
    os.chdir(folder)
    os.environ |= {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    from lm_eval import simple_evaluate
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from lm_eval.tasks import TaskManager

    model = LocalCompletionsAPI(
        model="rate", base_url=f"{base}/v1/completions", max_length=context, num_concurrent=4, batch_size=8, max_retries=1
    )
    score, seconds = model.loglikelihood_rolling, []

    def timed(*words, **options):
        begun = time.monotonic()
        scores = score(*words, **options)
        seconds.append(time.monotonic() - begun)
        return scores

    model.loglikelihood_rolling = timed
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    simple_evaluate(model=model, tasks=["rate"], task_manager=manager, bootstrap_iters=0)
    return sum(seconds)


def main():
    options = parser(__doc__)
    options.add_argument("--width", type=int, default=512)
    options.add_argument("--blocks", type=int, default=8)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--document", type=int, default=20000, help="characters of a document")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the server")
    options = options.parse_args()
    dipaco, folder = options.dipaco, pathlib.Path(tempfile.mkdtemp(prefix="lm-eval-rate-"))
    text, run_folder, config = documents(folder, options.document), folder / "run", folder / "rate.toml"
    width = options.width
    config.write_text(CONFIG.format(width=width, blocks=options.blocks, heads=width // 64, ffn=4 * width))
    (folder / "rate.yaml").write_text(TASK)
    run(dipaco, "prepare", CORPUS, "--validation", text, "--run", run_folder, "--config", config)
    seed_and_route(dipaco, run_folder)
    run(dipaco, "train", "--run", run_folder, "--workers", 1)
    words = [word for setting in options.set for word in ("--set", setting)]
    log = folder / "serve.log"
    server = Process(log, [dipaco, "serve", "--run", run_folder, "--address", "127.0.0.1:0", *words])
    try:
        while not (found := re.search(r"serving \S+ at (http://\S+)", log.read_text())):
            if server.ended():
                sys.exit(log.read_text())
            time.sleep(0.1)
        base, sides = found.group(1), {"evaluate": [], "harness": []}
        count = tokens(base, text)
        for _ in range(options.turns):
            one = evaluate(dipaco, run_folder, *settings({"evaluation.max_documents": 1}))
            sides["evaluate"].append(count / (evaluate(dipaco, run_folder) - one))
            sides["harness"].append(count / harness(base, folder, 512))
            print(json.dumps({side: round(rates[-1], 1) for side, rates in sides.items()}), flush=True)
    finally:
        end(server)
    medians = {side: statistics.median(rates) for side, rates in sides.items()}
    print(json.dumps({
        "tokens": count,
        "tokens/s, medians": {side: round(rate, 1) for side, rate in medians.items()},
        "ratio": round(medians["harness"] / medians["evaluate"], 3),
    }))


if __name__ == "__main__":
    main()
