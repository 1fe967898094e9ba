#!/usr/bin/env python3
"""Whether a server does as much under ten times the load that it can carry.

    scripts/bench-overload.py --size paper --set serve.format=q8_0

First a closed loop finds the peak: requests per second with more clients than places. Then an open loop sends --times as many
requests per second to the same server. Another server gets the same overload as its first requests (`cold`). An admitted
request has serve.request_timeout seconds. Prints goodput (requests per second that were answered in time) and its share of the
peak, the latency of refusals, answers by status, and the server's resident memory before, during and after.

The targets: goodput of 95 % of the peak, refusals within 10 ms (p99), no admitted request that ends with 504, and flat memory.
A 504 counts as admitted: whatever is refused gets 429. Memory is flat if its largest value in the last third is at most 5 % above
that of the third before. Exits with 1 if a target is missed. The load generator shares the machine with the server.
"""

import json
import sys
import threading

import serving


def main():
    options = serving.parser(__doc__, 4)
    options.add_argument("--times", type=float, default=10, help="the load, in times of the peak")
    options.add_argument("--seconds", type=float, default=60, help="duration of the overload")
    options.add_argument("--timeout", type=float, default=10, help="serve.request_timeout")
    options.add_argument("--tokens", type=int, default=32, help="generated tokens of a request")
    options.add_argument("--clients", type=int, default=48, help="clients of the closed loop")
    options.add_argument("--requests", type=int, default=300, help="requests of the closed loop")
    given = options.parse_args()
    run = serving.prepared(given)
    words = serving.setting(given, request_timeout=given.timeout)
    failed = False
    with serving.Server(given.dipaco, run, *words) as server:
        request = ["--paths", server.info()["paths"], "--max-tokens", given.tokens]
        found = loaded(given, server, *request, "--clients", given.clients, "--requests", given.requests)
        peak = found["requests_per_s"]
        print(json.dumps({"case": "peak", "requests_per_s": round(peak, 2), "failures": found["failures"],
                          "refused": found["refused"], "resident_mib": round(server.resident())}), flush=True)
        failed |= overload(given, server, "warm", request, peak)
    with serving.Server(given.dipaco, run, *words) as server:
        failed |= overload(given, server, "cold", request, peak)
    sys.exit(1 if failed else 0)


def loaded(given, server, *words):
    """What `dipaco bench serve` found."""
    test = serving.start_load(given.dipaco, server.url, "--vocabulary", serving.VOCABULARY, "--timeout", 4 * given.timeout, *words)
    out, _ = test.communicate()
    if test.returncode != 0:
        sys.exit(f"the load test failed: {server.log}")
    return json.loads(out)


def overload(given, server, case, request, peak):
    """Prints what the server did under the overload; returns whether a target was missed."""
    rate, sizes, ended = given.times * peak, [server.resident()], threading.Event()

    def watch():
        while not ended.wait(1):
            sizes.append(server.resident())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        found = loaded(given, server, *request, "--rate", rate, "--requests", int(rate * given.seconds), "--warm-up", 0)
    finally:
        ended.set()
        watching.join()
    third = max(1, len(sizes) // 3)
    # The last admitted requests are answered after the last has been sent.
    goodput = found["completed"] / found["seconds"]
    resident = [round(max(part)) for part in (sizes[:third], sizes[third:-third] or sizes, sizes[-third:])]
    late = sum(count for why, count in found["failures"].items() if "504" in why or "deadline" in why)
    print(json.dumps({
        "case": case, "sent_per_s": round(rate, 1), "goodput_per_s": round(goodput, 2), "share_of_peak": round(goodput / peak, 3),
        "refusal_p50_ms": found["refusal_ms"]["p50"], "refusal_p99_ms": found["refusal_ms"]["p99"],
        "completed": found["completed"], "refused": found["refused"], "late": late, "failures": found["failures"],
        "request_p50_ms": found["request_ms"]["p50"], "request_p99_ms": found["request_ms"]["p99"], "seconds": found["seconds"],
        "generator_processor_seconds": found["own_processor_seconds"],
        "resident_mib": resident,
    }), flush=True)
    return late > 0 or goodput < 0.95 * peak or found["refusal_ms"]["p99"] >= 10 or resident[2] > 1.05 * resident[1]


if __name__ == "__main__":
    main()
