#!/usr/bin/env python3
"""Compares `dipaco serve` with llama.cpp's server on the same paths, formats and requests.

    scripts/bench-serving.py --run RUN --python .venv/bin/python --formats f32,bf16,q8_0,q4_0 --rounds 3

RUN is a run with a fitted router. Its paths are exported as GGUF files, so both sides have the same weights.
`dipaco bench serve` sends the same requests to both: 32 random token ids, greedy, a fixed number of tokens.
The sides run in turn. Each case starts its servers anew. The table has ratios of medians over the rounds.

Cases:
    one      one request at a time, on path 0
    many     32 requests at a time, on path 0; llama.cpp has 32 slots
    mixed    32 requests at a time, over all paths; llama.cpp has a server for each path, with two slots each, and one thread each: with two,
             threads of many servers wait for each other on the same processors
    prompt   prompts of 512 ids and one token, one request at a time, on path 0

PYTHON has the package xllamacpp. Nothing else should run on the machine.
With --bandwidth (PYTHON needs torch) each round also measures how fast the threads read memory, and `one` names the share of that rate
at which it reads the weights while it generates.
"""

import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import runs
import serving

# Of each case: clients, measured requests, requests before them, ids of a prompt, generated tokens, all paths or one.
CASES = {
    "one": (1, 4, 1, 32, 64, False),
    "many": (32, 64, 4, 32, 32, False),
    "mixed": (32, 64, 4, 32, 32, True),
    "prompt": (1, 6, 1, 512, 1, False),
}
THREADS = 2
SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_parallel = int(sys.argv[2])
params.n_ctx = params.n_parallel * 1024
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.verbosity = -1
params.port = 0
server = xllamacpp.Server(params)
print("ADDRESS", server.listening_address, flush=True)
sys.stdin.read()
"""


BANDWIDTH = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
numbers = torch.ones(1 << 28)
def seconds():
    began = time.perf_counter()
    numbers.sum()
    return time.perf_counter() - began
seconds()
print(4 * len(numbers) / min(seconds() for _ in range(10)))
"""


def options():
    parser = runs.parser(__doc__)
    parser.add_argument("--run", type=pathlib.Path, required=True)
    parser.add_argument("--python", type=pathlib.Path, default=runs.ROOT / ".venv/bin/python")
    parser.add_argument("--formats", default="f32,bf16,q8_0,q4_0")
    parser.add_argument("--cases", default="one,many,mixed,prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default="dipaco,llama.cpp")
    parser.add_argument("--set", action="append", default=[], help="further settings of `dipaco serve`")
    parser.add_argument("--bandwidth", action="store_true", help="compare with the rate at which memory is read")
    parser.add_argument("--exports", type=pathlib.Path, help="folder that keeps the exported files")
    return parser.parse_args()


class Llama:
    """A server of one exported path."""

    def __init__(self, given, file, slots, threads):
        words = [given.python, "-c", SERVER, file, slots, threads]
        self.child = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)
        for line in self.child.stdout:
            if line.startswith("ADDRESS"):
                self.url = line.split()[1]
                return
        sys.exit(f"llama.cpp does not serve {file}")

    def end(self):
        self.child.stdin.close()
        self.child.kill()
        self.child.wait()


def load(given, url, case, clients, requests, warm_up, paths):
    """Starts a load test; returns the process."""
    _, _, _, ids, tokens, _ = CASES[case]
    words = ["--clients", clients, "--requests", requests, "--warm-up", warm_up, "--prompt-tokens", ids, "--max-tokens", tokens,
             "--vocabulary", 2000, *(["--paths", paths] if paths else [])]
    return serving.start_load(given.dipaco, url, *words)


def result(tests):
    """What load tests at the same time measured together."""
    found = [json.loads(test.communicate()[0]) for test in tests]
    failed = {why: count for one in found for why, count in one["failures"].items()}
    if failed or any(one["refused"] for one in found):
        sys.exit(f"requests failed: {failed}")
    seconds = max(one["seconds"] for one in found)
    total = lambda key: sum(one[key] for one in found)
    between = [one["inter_token_ms"]["p50"] for one in found]
    return {
        "tokens_per_s": total("generated_tokens") / seconds,
        "all_tokens_per_s": (total("generated_tokens") + total("prompt_tokens")) / seconds,
        "first_token_ms": statistics.median(one["first_token_ms"]["p50"] for one in found),
        "between_tokens_ms": between[0] if len(between) == 1 else None,
        "client_seconds": total("own_processor_seconds"),
        "seconds": seconds,
    }


def measure(given, side, form, case, paths, exports):
    clients, requests, warm_up, _, _, all_paths = CASES[case]
    if side == "dipaco":
        # So that the memory of the weights is that of the paths which are asked.
        preload = {} if all_paths else {"preload": "none"}
        with serving.Server(given.dipaco, given.run, *serving.setting(given, format=form, **preload)) as server:
            found = result([load(given, server.url, case, clients, requests, warm_up, paths if all_paths else 1)])
            return found | {"weight_bytes": server.info()["weight_bytes"]}
    chosen = exports[form][: paths if all_paths else 1]
    servers = [Llama(given, file, -(-clients // len(chosen)), 1 if all_paths else THREADS) for file in chosen]
    try:
        shares = [max(1, share // len(servers)) for share in (clients, requests, warm_up)]
        return result([load(given, server.url, case, *shares, None) for server in servers])
    finally:
        for server in servers:
            server.end()


def export(given, formats, paths, folder):
    """The GGUF files of all paths in each format."""
    files = {}
    for form in formats:
        files[form] = [folder / f"{form}-{path}.gguf" for path in range(paths)]
        for path, file in enumerate(files[form]):
            if not file.exists():
                runs.run(given.dipaco, "export", "--run", given.run, "--path", path, "--gguf", file, "--format", form)
    return files


def main():
    given = options()
    formats, cases, sides = given.formats.split(","), given.cases.split(","), given.sides.split(",")
    status = json.loads(runs.run(given.dipaco, "status", "--json", "--run", given.run))
    paths = len(status["training"]["paths"]) if any(CASES[case][5] for case in cases) else 1
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.exports or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        exports = export(given, formats, paths, folder) if "llama.cpp" in sides else {}
        found = {}
        for round_number in range(given.rounds):
            if given.bandwidth:
                words = [given.python, "-c", BANDWIDTH, str(THREADS)]
                read = float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
                print(json.dumps({"round": round_number, "read_gb_per_s": read / 1e9}), flush=True)
            for form, case, side in itertools.product(formats, cases, sides):
                one = measure(given, side, form, case, paths, exports)
                if given.bandwidth and case == "one" and side == "dipaco":
                    _, requests, _, _, tokens, _ = CASES[case]
                    generating = one["seconds"] / requests - one["first_token_ms"] / 1e3
                    one["share_of_bandwidth"] = one["weight_bytes"] * (tokens - 1) / generating / read
                found.setdefault((form, case, side), []).append(one)
                print(json.dumps({"round": round_number, "format": form, "case": case, "side": side, **one}), flush=True)
    print("\n| case | format | " + " | ".join(f"{side}, tokens/s" for side in sides) + " | ratio of medians |")
    print("|---|---|" + "--:|" * len(sides) + "--:|")
    for case, form in itertools.product(cases, formats):
        key = "all_tokens_per_s" if case == "prompt" else "tokens_per_s"
        medians = [statistics.median(one[key] for one in found[form, case, side]) for side in sides]
        ratio = f"{medians[0] / medians[-1]:.2f}" if len(sides) > 1 else "-"
        print(f"| {case} | {form} | " + " | ".join(f"{value:.1f}" for value in medians) + f" | {ratio} |")


main()
