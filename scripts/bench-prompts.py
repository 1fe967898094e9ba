#!/usr/bin/env python3
"""How fast a server reads prompts: a long one, a short one with its router, and one that it has read before.

    .venv/bin/python scripts/bench-prompts.py --size paper
    .venv/bin/python scripts/bench-prompts.py --size paper --set serve.format=q8_0

Needs numpy, which scripts/python.sh installs. One request at a time, each for one token. Prints medians of --repeats and, for
each round, the three shares of the targets:
    product   multiplications and additions of a second for a prompt of --long tokens, over the rate of this program's f32
              products (`dipaco bench step`). The target is 0.7. With formats of few bits it compares with f32 products
    first     time to the first token of a prompt of 32 tokens that the router sends to its path, over the time to read the
              weights of the seed and of the path once. The target is at most 1.5. The time to read is that of two threads that
              sum as many bytes, measured in the same round. `pinned_ms` is the time of the same prompt whose request names its
              path: the rest of `short_ms` is the router's. `multiplying_ms` is the time of the multiplications and additions of
              both, at the rate of the f32 products: no program that computes in f32 is faster
    repeat    time to the first token of a prompt that was read before, over that of a new one. The target is at most 0.15
"""

import concurrent.futures
import json
import random
import statistics
import time
import tomllib

import numpy

import runs
import serving


def main():
    options = serving.parser(__doc__, 4)
    options.add_argument("--long", type=int, default=512, help="tokens of a long prompt; less than the context")
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    run = serving.prepared(given)
    with serving.Server(given.dipaco, run, *serving.setting(given)) as server:
        info, model = server.info(), tomllib.loads((run / "config.toml").read_text())["model"]
        # The seed is f32 whatever the format.
        path = info["weight_bytes"] / (info["modules_loaded"] / len(info["modules_per_level"]))
        read = 4 * info["path_parameters"] + path
        for number in range(given.rounds):
            found = measure(server, given, random.Random(number))
            products = json.loads(runs.run(given.dipaco, "bench", "step", "--size", "s", "--steps", 1, "--json"))["product_gflops"]
            rate = operations(model, given.long) / found["long_ms"] / 1e6
            reading = 1e3 * reading_seconds(read)
            print(json.dumps({
                "round": number, "format": info["format"], **{key: round(value, 2) for key, value in found.items()},
                "long_tokens_per_s": round(1e3 * given.long / found["long_ms"], 1),
                "long_gflops": round(rate, 1), "product_gflops": round(products, 1), "reading_ms": round(reading, 2),
                "product": round(rate / products, 3),
                "multiplying_ms": round((features(model, 32) + operations(model, 32)) / products / 1e6, 2),
                "first": round(found["short_ms"] / reading, 2),
                "repeat": round(found["repeated_ms"] / found["long_ms"], 3),
            }), flush=True)


def measure(server, given, draw):
    """Medians of the times to the first token, in milliseconds."""
    times = {"long_ms": [], "repeated_ms": [], "short_ms": [], "pinned_ms": []}

    def ask(name, prompt, **fields):
        sent = server.stream(prompt, 1, **fields)
        times[name].append(1e3 * (sent[1] - sent[0]))

    for _ in range(given.repeats):
        prompt, short, pinned = ([draw.randrange(serving.VOCABULARY) for _ in range(count)] for count in (given.long, 32, 32))
        ask("long_ms", prompt, path=0)
        ask("repeated_ms", prompt, path=0)
        ask("short_ms", short)
        ask("pinned_ms", pinned, path=0)
    return {name: statistics.median(found) for name, found in times.items()}


def operations(model, tokens):
    """Multiplications and additions of a path for a prompt whose last token is predicted."""
    return features(model, tokens) + 2 * model["hidden_size"] * model["vocab_size"]


def features(model, tokens):
    """Multiplications and additions of all blocks for so many tokens."""
    width, blocks, ffn = model["hidden_size"], model["blocks"], model["ffn_size"]
    inner = model["heads"] * model["head_dim"]
    of_token = blocks * 2 * (4 * width * inner + 3 * width * ffn)
    # A token attends to half of the others on average: scores and sums of values.
    attention = blocks * 4 * inner * (tokens + 1) / 2
    return tokens * (of_token + attention)


def reading_seconds(size):
    """Time of two threads to read so many bytes of memory: the best of five."""
    halves = [numpy.ones(int(size) // 16, numpy.float64) for _ in range(2)]
    best = float("inf")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            begun = time.perf_counter()
            list(pool.map(numpy.sum, halves))
            best = min(best, time.perf_counter() - begun)
    return best


if __name__ == "__main__":
    main()
