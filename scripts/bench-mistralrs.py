#!/usr/bin/env python3
"""Compares `dipaco serve` with mistral.rs on path 0 of a run, in the same format, with the same prompts.

    scripts/bench-mistralrs.py --run RUN --python VENV/bin/python --formats f32,q8_0 --rounds 3

--clients clients at a time send prompts of about 32 tokens of real text, and let each be continued by 32 tokens, greedily.
mistral.rs (the package mistralrs of PYTHON) reads the exported GGUF file and is called in its own process. `dipaco serve` is called
over HTTP. Both have two threads. The sides run in turn, --rounds times. Prints generated tokens a second, by the sides' own
counts, and the ratio of their medians. Nothing else should run on the machine.
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import runs
import serving

THREADS = 2
PROMPT_BYTES = 130
NEW_TOKENS = 32
MISTRALRS = """
import concurrent.futures, json, sys, threading, time
import mistralrs
sending = threading.Lock()
file, tokenizer, clients, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
which = mistralrs.Which.GGUF(
    quantized_model_id=file.rpartition("/")[0], quantized_filename=file.rpartition("/")[2], tokenizer_json=tokenizer
)
runner = mistralrs.Runner(which=which, max_seqs=clients, prefix_cache_n=0)
# A text is a prompt without a template. Only streams run at the same time.
def ask(prompt):
    with sending:
        stream = runner.send_chat_completion_request(mistralrs.ChatCompletionRequest(
            messages=prompt, model="default", max_tokens=tokens, temperature=0.0, top_k=1, stream=True
        ))
        parts = iter(stream)
        # Several new prompts in one step end this version on a processor: "input tensor is not contiguous". So each prompt
        # waits until the one before it has a token; later tokens of all are computed together.
        usage = [next(parts).usage]
    usage = [one for one in [*usage, *(part.usage for part in parts)] if one]
    return usage[-1].prompt_tokens, usage[-1].completion_tokens
for line in sys.stdin:
    prompts = json.loads(line)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(ask, prompts))
    print("DONE", json.dumps([time.monotonic() - began, counts]), flush=True)
"""


class MistralRs:
    """mistral.rs with an exported path, in a process of its own."""

    def __init__(self, given, file, tokenizer):
        words = [given.python, "-c", MISTRALRS, file, tokenizer, given.clients, NEW_TOKENS]
        environment = os.environ | {"RAYON_NUM_THREADS": str(THREADS)}
        self.log = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def ask(self, prompts):
        """Seconds, and prompt and generated tokens of each answer."""
        self.child.stdin.write(json.dumps(prompts) + "\n")
        self.child.stdin.flush()
        for line in self.child.stdout:
            if line.startswith("DONE "):
                return json.loads(line.removeprefix("DONE "))
        self.log.seek(0)
        sys.exit(f"mistral.rs ended:\n{self.log.read()[-3000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.wait()


class Dipaco(serving.Server):
    """`dipaco serve`, which answers on path 0."""

    def __init__(self, given, form):
        super().__init__(given.dipaco, given.run, *serving.setting(given, format=form))
        self.clients = given.clients

    def one(self, prompt):
        fields = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "path": 0}
        usage = self.post("/v1/completions", fields)["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]

    def ask(self, prompts):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.clients) as pool:
            counts = list(pool.map(self.one, prompts))
        return time.monotonic() - began, counts


def prompts(count, skip):
    """Pieces of real text."""
    with gzip.open(runs.CORPUS / "pages.txt.gz", "rt") as text:
        words = " ".join(text.read().split())
    pieces = [words[at : at + PROMPT_BYTES] for at in range(0, len(words) - PROMPT_BYTES, PROMPT_BYTES)]
    return pieces[skip : skip + count]


def main():
    options = serving.parser(__doc__, 2)
    options.add_argument("--python", type=pathlib.Path, required=True, help="an interpreter with the package mistralrs")
    options.add_argument("--formats", default="f32,q8_0")
    options.add_argument("--clients", type=int, default=32)
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    if given.run is None:
        sys.exit("--run is missing: a run with a tokenizer of real text")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for form in given.formats.split(","):
            runs.run(given.dipaco, "export", "--run", given.run, "--path", 0, "--gguf", folder / f"{form}.gguf", "--format", form)
        runs.run(given.dipaco, "export", "--run", given.run, "--path", 0, "--out", folder / "weights")
        for number in range(given.rounds):
            for form in given.formats.split(","):
                for side in ("dipaco", "mistral.rs"):
                    file, tokenizer = folder / f"{form}.gguf", folder / "weights/tokenizer.json"
                    with Dipaco(given, form) if side == "dipaco" else MistralRs(given, file, tokenizer) as server:
                        server.ask(prompts(given.clients, 0))
                        seconds, counts = server.ask(prompts(given.requests, given.clients))
                    read, generated = (sum(count[at] for count in counts) for at in (0, 1))
                    row = {"round": number, "format": form, "side": side, "prompt_tokens": read, "generated_tokens": generated,
                           "seconds": round(seconds, 3), "tokens_per_s": round(generated / seconds, 1)}
                    print(json.dumps(row), flush=True)
                    found.setdefault((form, side), []).append(generated / seconds)
    print("\n| format | dipaco, tokens/s | mistral.rs, tokens/s | ratio of medians |\n|---|--:|--:|--:|")
    for form in given.formats.split(","):
        ours, theirs = (statistics.median(found[form, side]) for side in ("dipaco", "mistral.rs"))
        print(f"| {form} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
