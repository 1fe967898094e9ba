#!/usr/bin/env python3
"""Compares what `dipaco bench serve` measures with what public load generators measure at the same server.

    scripts/check-bench-serve.py --run RUN --guidellm VENV/bin/guidellm --oha oha --text VALIDATION/*.json.gz

Closed loop: --clients clients send the same prompts of --text, each continued by 32 tokens, greedily; `bench serve` and guidellm (PyPI) in
turn, --rounds times. Prints requests and tokens a second, and medians of the times to the
first token, of a later token, and of a request.
Overload: an open loop at --times the rate of the closed loop for --seconds, and --timeout seconds for each request; `bench serve` and oha
(crates.io) in turn. Prints answers and refusals of both, and the latency of refusals, in medians and 99th percentiles.

RUN is a run with a router; path 0 is exported for its tokenizer. Nothing else should run on the machine.
"""

import gzip
import json
import pathlib
import statistics
import subprocess
import tempfile

import runs
import serving

TOKENS = 32
CHARACTERS = 130


def main():
    options = runs.parser(__doc__)
    options.add_argument("--run", type=pathlib.Path, required=True)
    options.add_argument("--guidellm", type=pathlib.Path, required=True)
    options.add_argument("--oha", type=pathlib.Path, required=True)
    options.add_argument("--text", type=pathlib.Path, required=True, nargs="+", help="files in the form of C4")
    options.add_argument("--clients", type=int, default=8)
    options.add_argument("--requests", type=int, default=96)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--times", type=float, default=10)
    options.add_argument("--seconds", type=int, default=15)
    options.add_argument("--timeout", type=float, default=5, help="serve.request_timeout of the overload")
    options.add_argument("--set", action="append", default=[], help="further settings of `dipaco serve`")
    given = options.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="dipaco-check-load-"))
    prompts = read(given.text, given.requests)
    (folder / "prompts.txt").write_text("\n".join(prompts) + "\n")
    lines = (json.dumps({"prompt": prompt, "output_tokens_count": TOKENS}) + "\n" for prompt in prompts)
    (folder / "prompts.jsonl").write_text("".join(lines))
    runs.run(given.dipaco, "export", "--run", given.run, "--path", 0, "--out", folder / "path-0", "--quiet")
    with serving.Server(given.dipaco, given.run, *serving.setting(given)) as server:
        found = {"bench serve": [], "guidellm": []}
        for number in range(given.rounds):
            for side, measure in (("bench serve", own_closed), ("guidellm", guidellm)):
                found[side].append(measure(given, server, folder))
                print(json.dumps({"case": "closed", "round": number, "side": side, **found[side][-1]}), flush=True)
        for key in found["guidellm"][0]:
            medians = [statistics.median(one[key] for one in found[side]) for side in ("bench serve", "guidellm")]
            print(json.dumps({"case": "closed", "median of": key, "bench serve over guidellm": round(medians[0] / medians[1], 3)}))
    rate = given.times * statistics.median(one["requests_per_s"] for one in found["bench serve"])
    with serving.Server(given.dipaco, given.run, *serving.setting(given, request_timeout=given.timeout)) as server:
        # The server learns its speed, by which it refuses.
        own_closed(given, server, folder)
        for number in range(given.rounds):
            for side, measure in (("bench serve", own_open), ("oha", oha)):
                print(json.dumps({"case": "overload", "round": number, "side": side, **measure(given, server, folder, rate)}), flush=True)


def read(files, count):
    """The first words of so many documents."""
    texts = (json.loads(line)["text"] for file in files for line in gzip.open(file, "rt"))
    return [" ".join(text.split())[:CHARACTERS] for text, _ in zip(texts, range(count))]


def own(given, server, *words):
    test = serving.start_load(given.dipaco, server.url, "--max-tokens", TOKENS, *words)
    out, _ = test.communicate()
    if test.returncode != 0:
        raise SystemExit("dipaco bench serve failed")
    return json.loads(out)


def own_closed(given, server, folder):
    found = own(given, server, "--prompts", folder / "prompts.txt", "--clients", given.clients, "--requests", given.requests)
    return {
        "requests_per_s": found["requests_per_s"], "tokens_per_s": found["tokens_per_s"],
        "first_token_p50_ms": found["first_token_ms"]["p50"], "per_token_p50_ms": found["per_token_ms"]["p50"],
        "request_p50_ms": found["request_ms"]["p50"],
    }


def guidellm(given, server, folder):
    report = folder / "guidellm.json"
    words = [
        given.guidellm, "run", "--disable-console",
        "--backend", f"kind=openai_http,target={server.url},model={server.name},request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={given.clients}", "--constraint", f"kind=max_requests,count={given.requests}",
        "--tokenizer", f"kind=huggingface_auto,model={folder / 'path-0'}",
        "--data", f"kind=json_file,path={folder / 'prompts.jsonl'}", "--output", f"kind=json,path={report}",
    ]
    runs.run(*words)
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    metrics = {name: values["successful"] for name, values in benchmark["metrics"].items() if "successful" in (values or {})}
    return {
        "requests_per_s": round(metrics["requests_per_second"]["mean"], 3),
        "tokens_per_s": round(metrics["output_tokens_per_second"]["mean"], 2),
        "first_token_p50_ms": round(metrics["time_to_first_token_ms"]["median"], 2),
        "per_token_p50_ms": round(metrics["inter_token_latency_ms"]["median"], 3),
        "request_p50_ms": round(1e3 * metrics["request_latency"]["median"], 2),
    }


def own_open(given, server, folder, rate):
    found = own(given, server, "--prompts", folder / "prompts.txt", "--rate", rate, "--requests", int(rate * given.seconds),
                "--warm-up", 0)
    return {
        "sent_per_s": round(rate, 1), "answered_per_s": round(found["completed"] / found["seconds"], 2), "refused": found["refused"],
        "refusal_p50_ms": found["refusal_ms"]["p50"], "refusal_p99_ms": found["refusal_ms"]["p99"], "failures": found["failures"],
    }


def oha(given, server, folder, rate):
    prompt = (folder / "prompts.txt").read_text().splitlines()[0]
    body = {"model": server.name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    # As many connections as an open loop at this rate can need. The end waits for what was admitted.
    words = [given.oha, "--no-tui", "--output-format", "json", "-z", f"{given.seconds}s", "-q", int(rate), "-c", 512, "--stats-success-breakdown", "--wait-ongoing-requests-after-deadline",
             "-m", "POST", "-T", "application/json", "-d", json.dumps(body), server.url + "/v1/completions"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    statuses = found["statusCodeDistribution"]
    refusals = found["latencyPercentilesNotSuccessful"]
    return {
        "sent_per_s": int(rate), "answered_per_s": round(statuses.get("200", 0) / found["summary"]["total"], 2),
        "refused": statuses.get("429", 0), "refusal_p50_ms": milliseconds(refusals["p50"]), "refusal_p99_ms": milliseconds(refusals["p99"]),
        "statuses": statuses, "failures": found["errorDistribution"],
    }


def milliseconds(seconds):
    return seconds and round(1e3 * seconds, 2)


if __name__ == "__main__":
    main()
