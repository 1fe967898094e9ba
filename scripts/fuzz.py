#!/usr/bin/env python3
"""Plays campaigns of damaged inputs for a long time, and appends a line for each to a log.

    scripts/fuzz.py --seconds 3600 --log fuzz.log codec router
    scripts/fuzz.py --list

Without names it plays all campaigns, one after the other. A line has the campaign, seconds, damaged inputs, the share of
them that got past the first checks, the most memory and the longest time of one input, findings, and the commit. A finding
is a failed test: its output goes to standard error. The tests are those of development, with overflow checks.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

from runs import ROOT, parser

CAMPAIGN = re.compile(r'Campaign::new\("([a-z0-9-]+)"\)')
TEST = re.compile(r"#\[test\]\s*(?:#\[[^]]*\]\s*)*fn (\w+)")
COUNTS = re.compile(
    r"^(?P<name>[a-z0-9-]+): CampaignCounts \{ cases: (?P<cases>\d+), outside: (?P<outside>\d+), inside: (?P<inside>\d+), "
    r"accepted: (?P<accepted>\d+), corpus: \d+, memory: (?P<memory>\d+), longest: (?P<longest>[^ ]+) \} in (?P<seconds>\d+) s",
    re.M,
)


def campaigns():
    """Each campaign with its package's folder, its test program, and its test."""
    found = {}
    for manifest in sorted(ROOT.glob("crates/*/Cargo.toml")) + [ROOT / "routing/Cargo.toml", ROOT / "shards/Cargo.toml"]:
        package = manifest.parent
        for file in sorted(package.rglob("*.rs")):
            if package.name == "fuzz":
                continue
            text = file.read_text()
            tests = [(test.start(), test[1]) for test in TEST.finditer(text)]
            for campaign in CAMPAIGN.finditer(text):
                within = file.relative_to(package)
                program = ["--test", within.stem] if within.parts[0] == "tests" else ["--lib"]
                name = [test for at, test in tests if at < campaign.start()][-1]
                found[campaign[1]] = (package.name, program, name)
    if "hdf5" in found:
        # The campaign plays in a child process, which another test starts.
        package, program, _ = found["hdf5"]
        found["hdf5"] = (package, program, "damaged_structures_behind_a_right_hash_end_at_most_their_process")
    return found


def built(cargo, package, program):
    """Builds a test program and returns its path."""
    words = [cargo, "test", "-p", f"dipaco-{package}", *program, "--no-run", "--message-format=json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    made = [message["executable"] for message in messages if message.get("executable") and message["profile"]["test"]]
    return made[-1]


def play(executable, package, test, seconds):
    """Plays a campaign; returns what its line says, and the test's output if it failed."""
    began = time.monotonic()
    environment = os.environ | {"DIPACO_FUZZ_SECONDS": str(seconds)}
    folder = next(folder for folder in (ROOT / "crates" / package, ROOT / package) if folder.exists())
    done = subprocess.run([executable, test, "--nocapture"], cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    counts = COUNTS.search(done.stdout)
    if counts is None:
        return f"{time.monotonic() - began:.0f} s, ended early", done
    cases = int(counts["cases"])
    past = (int(counts["inside"]) + int(counts["accepted"])) / max(cases, 1)
    memory = int(counts["memory"]) / 2**20
    return f"{counts['seconds']} s, {cases} inputs, {100 * past:.1f} % past the first checks, {memory:.2f} MiB, {counts['longest']}", done


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("campaigns", nargs="*", metavar="CAMPAIGN")
    options.add_argument("--seconds", type=int, default=3600)
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("fuzz.log"))
    options.add_argument("--cargo", default="cargo", help="the program that builds")
    options.add_argument("--list", action="store_true", help="print the campaigns and their tests")
    options = options.parse_args()
    known = campaigns()
    if options.list:
        for name, (package, program, test) in known.items():
            print(f"{name:20} dipaco-{package} {' '.join(program)} {test}")
        return
    unknown = [name for name in options.campaigns if name not in known]
    if unknown:
        sys.exit(f"no campaigns: {' '.join(unknown)}; --list prints all")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    findings = 0
    for name in options.campaigns or known:
        package, program, test = known[name]
        executable = built(options.cargo, package, program)
        line, done = play(executable, package, test, options.seconds)
        failed = done.returncode != 0 or "1 passed" not in done.stdout
        findings += failed
        with open(options.log, "a") as log:
            log.write(f"{name}: {line}, {'1 finding' if failed else '0 findings'}, {commit}\n")
        if failed:
            print(f"{name}: {' '.join([executable, test])}\n{done.stdout[-2000:]}{done.stderr[-4000:]}", file=sys.stderr)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
