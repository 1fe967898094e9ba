#!/usr/bin/env python3
"""What a long prompt costs the streams that run beside it.

    scripts/bench-streams.py --size paper --set serve.format=q8_0

A number of streams generate on paths of their own. Meanwhile prompts that fill the context arrive, one after the other, each
for one token. Prints the time between two tokens of the streams, alone and beside a prompt, the ratio of the 99th percentile
beside a prompt to the median beside it and to the median alone, and the time of each prompt. The target is a ratio of at most 2.

Times need a quiet machine. The ratio needs one that is at least equally loud all the time.
"""

import json
import random
import sys
import threading
import time

import serving


def main():
    options = serving.parser(__doc__, 4)
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--tokens", type=int, default=300, help="of each stream")
    options.add_argument("--prompts", type=int, default=1, help="long prompts, one after the other")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    run = serving.prepared(given)
    with serving.Server(given.dipaco, run, *serving.setting(given)) as server:
        context, paths = server.info()["max_model_len"], server.info()["paths"]
        for number in range(given.rounds):
            print(json.dumps({"round": number, **measure(server, given, context, paths, random.Random(number))}), flush=True)


def measure(server, given, context, paths, draw):
    def ids(count):
        return [draw.randrange(serving.VOCABULARY) for _ in range(count)]

    streams, begun = {}, threading.Barrier(given.streams + 1)

    def stream(number, prompt):
        # The streams begin together, when the cache has their prompts.
        server.stream(prompt, 1, path=number % paths)
        begun.wait()
        streams[number] = server.stream(prompt, given.tokens, path=number % paths)

    prompts = [ids(32) for _ in range(given.streams)]
    threads = [threading.Thread(target=stream, args=one) for one in enumerate(prompts)]
    for thread in threads:
        thread.start()
    begun.wait()
    # The prompts come when the streams have generated for a while.
    count = "dipaco_inter_token_latency_seconds_count"
    before = server.metric(count)
    while server.metric(count) - before < given.streams * given.tokens / 4:
        time.sleep(0.05)
    long = [server.stream(ids(context - 1), 1, path=draw.randrange(paths)) for _ in range(given.prompts)]
    for thread in threads:
        thread.join()
    alone, beside = [], []
    for times in streams.values():
        for begin, end in zip(times[1:], times[2:]):
            is_beside = any(prompt[0] <= end and begin <= prompt[-1] for prompt in long)
            (beside if is_beside else alone).append(1e3 * (end - begin))
    if not beside:
        sys.exit("the streams ended before the prompts came: raise --tokens")
    median, p99 = serving.percentile(alone, 0.5), serving.percentile(beside, 0.99)
    return {
        "alone_p50_ms": round(median, 2), "alone_p99_ms": round(serving.percentile(alone, 0.99), 2), "alone": len(alone),
        "beside_p50_ms": round(serving.percentile(beside, 0.5), 2), "beside_p99_ms": round(p99, 2), "beside": len(beside),
        "ratio": round(p99 / serving.percentile(beside, 0.5), 2), "ratio_to_alone": round(p99 / median, 2),
        "prompt_ms": [round(1e3 * (times[-1] - times[0])) for times in long],
    }


if __name__ == "__main__":
    main()
