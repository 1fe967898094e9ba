#!/usr/bin/env python3
"""Plays campaigns of damaged inputs for a long time, and appends a line for each turn to a log.

    scripts/fuzz.py --until 3600 --jobs 2 --log fuzz.log codec router
    scripts/fuzz.py --seconds 30 --until 10 --first commit
    scripts/fuzz.py --list

Without names it plays all campaigns. They play in turns of --seconds, --jobs at a time, until the log names --until seconds of
processor time for each. A repeated call goes on with the cases after those of the log. --first names the case with which a log
begins: a number, or `commit` for one that follows from the commit, so that short runs of several commits play several cases. A line
has the campaign, seconds, seconds of processors, damaged inputs and the first case, the share of them that got past the first checks,
the most memory and the longest time of one input, findings, and the commit. A finding is a failed test: its output goes to standard
error, and its campaign ends. The tests are those of development, with overflow checks. Campaigns that write files play many times as
many inputs with TMPDIR=/dev/shm, a folder in memory.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from runs import ROOT, commit, parser, test_programs

CAMPAIGN = re.compile(r'Campaign::new\("([a-z0-9-]+)"\)')
TEST = re.compile(r"#\[test\]\s*(?:#\[[^]]*\]\s*)*fn (\w+)")
COUNTS = re.compile(
    r"^(?P<name>[a-z0-9-]+): CampaignCounts \{ cases: (?P<cases>\d+), outside: (?P<outside>\d+), inside: (?P<inside>\d+), "
    r"accepted: (?P<accepted>\d+), corpus: \d+, memory: (?P<memory>\d+), longest: (?P<longest>[^ ]+) \} in (?P<seconds>\d+) s",
    re.M,
)
# A child process that HDF5 ended, or that stood still in it.
ENDS = re.compile(r"^hdf5: case (\d+) (?:hangs|ends its process)", re.M)
# A campaign's line in the log: seconds of processors, and inputs.
TURN = r"^{}: \d+ s, (\d+) s of processors, (\d+) inputs from"


def campaigns():
    """Each campaign with its package's folder, the name of its test program, and its test."""
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
                program = within.stem if within.parts[0] == "tests" else "lib"
                name = [test for at, test in tests if at < campaign.start()][-1]
                found[campaign[1]] = (package, program, name)
    if "hdf5" in found:
        # The campaign plays in a child process, which another test starts.
        package, program, _ = found["hdf5"]
        found["hdf5"] = (package, program, "damaged_structures_behind_a_right_hash_end_at_most_their_process")
    return found


def first_case(word):
    """The first case of a log: this number, or one that follows from the commit."""
    return int(commit()[:7], 16) if word == "commit" else int(word)


def milliseconds(duration):
    """The milliseconds of a time as Rust prints it: 1.2s, 31.4ms, 950µs, 80ns."""
    number, unit = re.fullmatch(r"([\d.]+)(s|ms|µs|ns)", duration).groups()
    return float(number) * {"s": 1e3, "ms": 1, "µs": 1e-3, "ns": 1e-6}[unit]


def played(log, name):
    """Seconds of processors, and inputs, that the log has of a campaign."""
    turns = re.findall(TURN.format(re.escape(name)), log.read_text() if log.exists() else "", re.M)
    return sum(int(seconds) for seconds, _ in turns), sum(int(inputs) for _, inputs in turns)


def play(executable, package, test, seconds, skip):
    """Plays a turn of a campaign; returns what its line says, and the test's output if it failed."""
    began = time.monotonic()
    environment = os.environ | {"DIPACO_FUZZ_SECONDS": str(seconds), "DIPACO_FUZZ_SKIP": str(skip)}
    with tempfile.TemporaryFile() as kept:
        child = subprocess.Popen([executable, test, "--nocapture"], cwd=package, env=environment, stdout=kept, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        kept.seek(0)
        output = kept.read().decode(errors="replace")
    processor = usage.ru_utime + usage.ru_stime
    failed = child.returncode != 0 or "1 passed" not in output
    turns = list(COUNTS.finditer(output))
    ends = [int(case) for case in ENDS.findall(output)]
    if not turns and (failed or not ends):
        return f"{time.monotonic() - began:.0f} s, {processor:.0f} s of processors, ended early", output
    cases, inside, accepted = (sum(int(turn[count]) for turn in turns) for count in ("cases", "inside", "accepted"))
    memory = max((int(turn["memory"]) for turn in turns), default=0) / 2**20
    longest = max((turn["longest"] for turn in turns), key=milliseconds, default="0s")
    # A child process that ended tells no counts: the inputs before that count as played, and a later turn begins behind them.
    inputs = max([cases + len(ends), *(case + 1 - skip for case in ends)])
    line = (
        f"{time.monotonic() - began:.0f} s, {processor:.0f} s of processors, {inputs} inputs from {skip} on, "
        f"{100 * (inside + accepted) / max(cases, 1):.1f} % past the first checks, {memory:.2f} MiB, {longest}"
    )
    if ends:
        line += f", {len(ends)} ends of a child process"
    return line, output if failed else None


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("campaigns", nargs="*", metavar="CAMPAIGN")
    options.add_argument("--until", type=int, default=3600, metavar="SECONDS", help="processor time of each campaign in the log")
    options.add_argument("--seconds", type=int, default=600, help="time of one turn")
    options.add_argument("--jobs", type=int, default=1, help="campaigns at a time")
    options.add_argument("--first", default="0", metavar="CASE|commit", help="first case of a log")
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("fuzz.log"))
    options.add_argument("--cargo", default="cargo", help="the program that builds")
    options.add_argument("--list", action="store_true", help="print the campaigns and their tests")
    options = options.parse_args()
    known = campaigns()
    if options.list:
        for name, (package, program, test) in known.items():
            print(f"{name:20} {package.relative_to(ROOT)} {program} {test}")
        return
    unknown = [name for name in options.campaigns if name not in known]
    if unknown:
        sys.exit(f"no campaigns: {' '.join(unknown)}; --list prints all")
    played_at, first = commit(), first_case(options.first)
    print(f"campaigns of {played_at} begin with case {first}; DIPACO_FUZZ_CASE plays one case again")
    programs = test_programs(options.cargo)
    # Copies, so that another build meanwhile does not change what plays.
    kept = tempfile.TemporaryDirectory()
    executables = {}
    for name in options.campaigns or known:
        original = pathlib.Path(programs[known[name][:2]])
        executables[name] = pathlib.Path(kept.name, original.name)
        if not executables[name].exists():
            shutil.copy2(original, executables[name])
    findings = set()
    writing = threading.Lock()

    def turn(name):
        package, _, test = known[name]
        line, failure = play(executables[name], package, test, options.seconds, first + played(options.log, name)[1])
        with writing, open(options.log, "a") as log:
            log.write(f"{name}: {line}, {'1 finding' if failure else '0 findings'}, {played_at}\n")
        if failure:
            findings.add(name)
            print(f"{name}: {executables[name]} {test}\n{failure[-6000:]}", file=sys.stderr)
        return name

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = set()
        while True:
            left = {name: played(options.log, name)[0] for name in executables if name not in findings}
            waiting = [name for name, seconds in left.items() if seconds < options.until and name not in {n for n, _ in running}]
            waiting.sort(key=left.get)
            running |= {(name, pool.submit(turn, name)) for name in waiting[: options.jobs - len(running)]}
            if not running:
                break
            done, _ = concurrent.futures.wait([future for _, future in running], return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                future.result()
            running = {(name, future) for name, future in running if future not in done}
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
