#!/usr/bin/env python3
"""Tokenising with `dipaco prepare` and with Hugging Face's tokenizers from Python, in turn, on all cores.

    scripts/bench-tokenize.py --dipaco target/release/dipaco --tokenizer tokenizer.json TEXT...

TEXT are C4 files (*.json.gz). Both sides have the same tokenizer.json and give the same tokens, which is checked.
`dipaco prepare` is timed as a whole: start of the process, decompressing, parsing, tokenising, hashing, writing and
syncing HDF5. On the other side `encode_batch` and `encode_batch_fast` (no offsets) are timed alone (texts already in
memory, nothing written), and with the same work from file to file. Medians and their ratios are printed.
"""

import gzip
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "true"
import numpy
import tokenizers

from runs import parser, run, settings


def dipaco(binary, tokenizer, files, threads):
    with tempfile.TemporaryDirectory() as folder:
        values = {"prepare.tokenizer": json.dumps(str(tokenizer)), "prepare.validation_fraction": 0, "prepare.threads": threads}
        start = time.perf_counter()
        out = run(binary, "--quiet", "prepare", "--run", folder, "--json", *settings(values), *files)
        seconds = time.perf_counter() - start
        report = json.loads(out)
        return seconds, report["train"]["tokens"] - report["train"]["documents"]


def texts_of(files):
    texts = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def whole(encode, files):
    """From file to file, a batch of a thousand documents at a time, as data preparation scripts do it."""
    start = time.perf_counter()
    tokens = 0
    with tempfile.NamedTemporaryFile() as out:
        for file in files:
            texts = texts_of([file])
            for at in range(0, len(texts), 1000):
                encodings = encode(texts[at : at + 1000], add_special_tokens=False)
                ids = numpy.concatenate([numpy.asarray(e.ids, dtype=numpy.uint16) for e in encodings])
                tokens += len(ids)
                out.write(ids.tobytes())
        out.flush()
        os.fsync(out.fileno())
    return time.perf_counter() - start, tokens


def alone(encode, texts):
    start = time.perf_counter()
    encodings = encode(texts, add_special_tokens=False)
    seconds = time.perf_counter() - start
    return seconds, sum(len(e.ids) for e in encodings)


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--tokenizer", required=True, type=pathlib.Path)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("files", nargs="+", metavar="TEXT")
    options = arguments.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(options.tokenizer))
    # dipaco never takes special tokens from text; with this both sides do the same.
    tokenizer.encode_special_tokens = True
    texts = texts_of(options.files)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    threads = len(os.sched_getaffinity(0))
    sides = {
        "dipaco prepare, file to file": lambda: dipaco(options.dipaco, options.tokenizer.resolve(), options.files, threads),
        "encode_batch, file to file": lambda: whole(tokenizer.encode_batch, options.files),
        "encode_batch_fast, file to file": lambda: whole(tokenizer.encode_batch_fast, options.files),
        "encode_batch alone": lambda: alone(tokenizer.encode_batch, texts),
        "encode_batch_fast alone": lambda: alone(tokenizer.encode_batch_fast, texts),
    }
    seconds = {name: [] for name in sides}
    counts = set()
    for _ in range(options.rounds):
        for name, side in sides.items():
            taken, tokens = side()
            seconds[name].append(taken)
            counts.add(tokens)
    if len(counts) != 1:
        sys.exit(f"the sides gave different numbers of tokens: {sorted(counts)}")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    own = medians["dipaco prepare, file to file"]
    print(f"{len(texts)} documents, {megabytes:.1f} MB, {counts.pop()} tokens, {threads} threads, "
          f"tokenizers {tokenizers.__version__}, {options.rounds} rounds")
    for name, median in medians.items():
        values = " ".join(f"{value:.2f}" for value in seconds[name])
        print(f"{name:32} {median:7.2f} s  {megabytes / median:6.2f} MB/s  {median / own:5.2f} x  ({values})")


if __name__ == "__main__":
    main()
