#!/usr/bin/env python3
"""What it gains to batch mixed requests by the modules that they share, and not by path.

    scripts/bench-batching.py --size medium --grid 16 --sequences 32,128

A batch is so many requests at once, each for a path at random. One server answers both sides, in turn:
    module   all requests of the batch at a time, as `dipaco serve` does: a step reads each module once
    path     the requests of one path at a time, path after path: a step reads the weights of one path. The time is the sum over
             the paths. So much a server can do that batches the sequences of a path, and knows nothing of shared modules

Both sides have the same requests, engine, kernels and format. Only the batches differ. A path's group has its prompts and tokens
in steps of its own, so the path side is what an engine would do that knows paths and no modules, in the best order.
Prints generated tokens per second (prompts included in the time) and the ratio of medians. Times need a quiet machine.
"""

import collections
import concurrent.futures
import json
import random
import statistics
import time

import serving


def main():
    options = serving.parser(__doc__, 16)
    options.add_argument("--sequences", default="32,128", help="requests of a batch")
    options.add_argument("--tokens", type=int, default=32, help="generated tokens of a request")
    options.add_argument("--prompt-tokens", type=int, default=32, help="ids of a prompt")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    run, sizes = serving.prepared(given), [int(size) for size in given.sequences.split(",")]
    with serving.Server(given.dipaco, run, *serving.setting(given, slots=max(sizes))) as server:
        info = server.info()
        for size in sizes:
            found = collections.defaultdict(list)
            for number in range(given.rounds):
                requests = batch(given, size, info["paths"], random.Random(number))
                for side in ("module", "path"):
                    groups = [requests] if side == "module" else by_path(requests)
                    seconds = sum(answer(server, group) for group in groups)
                    found[side].append(size * given.tokens / seconds)
                    print(json.dumps({"sequences": size, "round": number, "batching": side, "groups": len(groups),
                                      "tokens_per_s": round(found[side][-1], 2)}), flush=True)
            gain = statistics.median(found["module"]) / statistics.median(found["path"])
            print(json.dumps({"sequences": size, "format": info["format"], "gain": round(gain, 2)}), flush=True)


def batch(given, size, paths, draw):
    """Requests for random paths, with prompts of random ids."""
    def one():
        ids = [draw.randrange(serving.VOCABULARY) for _ in range(given.prompt_tokens)]
        return {"prompt": ids, "path": draw.randrange(paths), "max_tokens": given.tokens, "ignore_eos": True, "temperature": 0}

    return [one() for _ in range(size)]


def by_path(requests):
    groups = collections.defaultdict(list)
    for request in requests:
        groups[request["path"]].append(request)
    return list(groups.values())


def answer(server, requests):
    """Seconds until all these requests, sent at once, are answered."""
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        begun = time.perf_counter()
        for _ in pool.map(lambda request: server.post("/v1/completions", request), requests):
            pass
        return time.perf_counter() - begun


if __name__ == "__main__":
    main()
