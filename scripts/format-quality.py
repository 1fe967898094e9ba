#!/usr/bin/env python3
"""What formats of few bits cost in perplexity: the same text through a server of each format.

    scripts/format-quality.py --run RUN --text held-out.txt

The text is cut into windows of the run's context, or of --window tokens. A server of each format routes every window by its
first tokens, and scores it (echo and logprobs). The first 32 tokens of a window are not counted, as in `evaluate`.
Prints the perplexity of each format, its rise over the first one (all in f32), the standard error over windows, and the
memory of the weights.
The targets are at most 0.1 % for q8_0 and 3 % for q4_0. No number depends on the load of the machine.
"""

import gzip
import json
import math
import pathlib
import statistics
import sys

import runs
import serving

PREFIX = 32


def main():
    options = runs.parser(__doc__)
    options.add_argument("--run", type=pathlib.Path, required=True)
    options.add_argument("--text", type=pathlib.Path, action="append", required=True, help="a text file, or one packed with gzip")
    options.add_argument("--formats", default="f32/f32,f32,bf16,q8_0,q4_0",
                         help="the first is what the others are compared with; f32/bf16 names weights, and keys and values")
    options.add_argument("--window", type=int, default=0, help="tokens of a window; 0 takes the context")
    options.add_argument("--windows", type=int, default=200, help="most windows")
    options.add_argument("--set", action="append", default=[], help="further settings of `dipaco serve`")
    given = options.parse_args()
    texts = [(gzip.open if file.suffix == ".gz" else open)(file, "rt").read() for file in given.text]
    base = exact = None
    for form in given.formats.split(","):
        weights, _, kv = form.partition("/")
        settings = {"format": weights, "kv_type": kv} if kv else {"format": weights}
        with serving.Server(given.dipaco, given.run, *serving.setting(given, **settings)) as server:
            info = server.info()
            size = given.window or info["max_model_len"]
            ids = [id for text in texts for id in tokens(server, text)]
            windows = [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)][: given.windows]
            if not windows:
                sys.exit(f"the text has {len(ids)} tokens, less than a window of {size}")
            scores = [tail(server, window) for window in windows]
        losses = [-statistics.fmean(one) for one in scores]
        base, exact = base or losses, exact or scores
        changes = [abs(a - b) for one, other in zip(scores, exact) for a, b in zip(one, other)]
        rises = [one - other for one, other in zip(losses, base)]
        error = statistics.stdev(rises) / math.sqrt(len(rises)) if len(rises) > 1 else 0
        print(json.dumps({
            "format": form, "windows": len(windows), "tokens": len(windows) * (size - PREFIX),
            "perplexity": round(math.exp(statistics.fmean(losses)), 4),
            "rise_percent": round(100 * math.expm1(statistics.fmean(rises)), 4), "standard_error_percent": round(100 * error, 4),
            "mean_change_of_log_probability": round(statistics.fmean(changes), 6), "weight_bytes": info["weight_bytes"],
        }), flush=True)


def tokens(server, text):
    """The token ids of a text, piece by piece: a body has a limit."""
    pieces = [text[at : at + 200_000] for at in range(0, len(text), 200_000)]
    return [id for piece in pieces for id in server.post("/tokenize", {"prompt": piece})["tokens"]]


def tail(server, window):
    """The log-probabilities of a window's tokens after the first ones."""
    ask = {"prompt": window, "max_tokens": 0, "echo": True, "logprobs": 0}
    scores = server.post("/v1/completions", ask)["choices"][0]["logprobs"]["token_logprobs"]
    return scores[PREFIX:]


if __name__ == "__main__":
    main()
