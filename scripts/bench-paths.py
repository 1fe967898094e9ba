#!/usr/bin/env python3
"""All paths of a large grid under serve.memory: does each answer, and does the memory stay within the limits?

    scripts/bench-paths.py --size medium --grid 16 --memory paths=3
    scripts/bench-paths.py --run RUN --memory 1073741824 --set serve.format=q8_0

Asks each path for a few tokens, in random order, with --clients at a time, --passes times. An answer of a path must be the same
in every pass, whatever left the memory between them. --memory is in bytes, or paths=N for N times the modules of a path.

The budget is what the server itself adds up before its start: all modules, or serve.memory if that is less, keys and values, the
router's seed, the tokenizer, what it takes to read a module, a step, and bodies of requests. Prints the largest resident memory,
without the program's own file, over the budget. Exits with 1 if a path fails or answers differently, or if resident memory is above
--most times the budget.
"""

import concurrent.futures
import json
import random
import re
import sys
import threading
import time

import serving

KV_BYTES = 64 << 20
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


def needs(server):
    """What the server needs at most, as it logs it before its start, and each part of it in bytes, rounded."""
    formula = re.search(r"the server needs at most ([^\n]*)", server.log.read_text())[1]
    # "3.6 GB: modules 2.6 GB, keys and values 66.8 MB, ..."
    parts = re.findall(r"([a-z ]+) ([0-9.]+) ([kMG]?)B", formula.partition(": ")[2])
    return formula, {name.strip(): float(number) * UNITS[unit] for name, number, unit in parts}


def main():
    options = serving.parser(__doc__, 16)
    options.add_argument("--memory", default="paths=3")
    options.add_argument("--clients", type=int, default=16)
    options.add_argument("--passes", type=int, default=2)
    options.add_argument("--tokens", type=int, default=4, help="generated tokens of a request")
    options.add_argument("--most", type=float, default=1.05, help="largest resident memory, in times of the budget")
    given = options.parse_args()
    run = serving.prepared(given)
    with serving.Server(given.dipaco, run, *serving.setting(given, preload="none", kv_bytes=KV_BYTES)) as probe:
        info = probe.info()
        everything = needs(probe)[1]["modules"]
    path = info["weight_bytes"]
    limit = int(path * float(given.memory.removeprefix("paths="))) if given.memory.startswith("paths=") else int(given.memory)
    words = serving.setting(given, memory=limit, kv_bytes=KV_BYTES, preload="none")
    failed, answers, most = [], {}, {"resident": 0, "modules": 0}
    with serving.Server(given.dipaco, run, *words) as server:
        ended = threading.Event()

        def watch():
            last = False
            while not last:
                last = ended.wait(0.05)
                most["modules"] = max(most["modules"], server.info()["weight_bytes"])

        def ask(number):
            request = {"prompt": list(range(1, 41)), "path": number, "max_tokens": given.tokens, "ignore_eos": True, "logprobs": 0,
                       "temperature": 0}
            try:
                choice = server.post("/v1/completions", request)["choices"][0]
            except (OSError, ValueError) as error:
                return failed.append(f"path {number}: {error}")
            text = json.dumps([choice["text"], choice["logprobs"]["token_logprobs"]])
            if answers.setdefault(number, text) != text:
                failed.append(f"path {number} answers differently")

        watching = threading.Thread(target=watch)
        watching.start()
        begun = time.monotonic()
        try:
            for number in range(given.passes):
                order = list(range(info["paths"]))
                random.Random(number).shuffle(order)
                with concurrent.futures.ThreadPoolExecutor(given.clients) as pool:
                    list(pool.map(ask, order))
        finally:
            ended.set()
            watching.join()
        seconds = time.monotonic() - begun
        most["resident"] = (server.process.most_resident() - server.resident("RssFile")) * 2**20
        loads = server.metric("dipaco_module_loads_total")
        formula, parts = needs(server)
    # The log rounds. The limit is known to the byte, and so are all modules where none had to leave: each path was asked.
    modules = most["modules"] if everything < limit else limit
    budget = modules + sum(size for name, size in parts.items() if name != "modules")
    print(json.dumps({
        "format": info["format"], "paths": info["paths"], "answered": len(answers), "passes": given.passes, "failed": len(failed),
        "limit_mib": round(limit / 2**20, 1), "most_modules_mib": round(most["modules"] / 2**20, 1), "loads": loads,
        "budget_mib": round(budget / 2**20, 1),
        "most_resident_mib": round(most["resident"] / 2**20, 1), "resident_over_budget": round(most["resident"] / budget, 3),
        "seconds": round(seconds, 1), "formula": formula,
    }))
    for failure in failed[:5]:
        print(failure, file=sys.stderr)
    sys.exit(1 if failed or most["modules"] > limit or most["resident"] > given.most * budget else 0)


if __name__ == "__main__":
    main()
