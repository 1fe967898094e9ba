#!/usr/bin/env python3
"""Runs the tests that kill processes and coordinators again and again, beside busy loops.

    scripts/repeat-under-load.py --times 200 --loops 4 --log repeated.log

Builds the test programs `chaos` (crates/train) and `kill` (tests) once. Each line of the log is one run of one program: its
number, its seconds, and the line with which the test program ends. A repeated call goes on after the last complete run of
the log. Ends with 1 at the first failure, after printing the output of the test.
"""

import json
import pathlib
import re
import subprocess
import sys
import time

from runs import ROOT, parser

PROGRAMS = {"chaos": ("dipaco-train", ROOT / "crates/train"), "kill": ("dipaco-tests", ROOT / "tests")}
# A loop that leaves no processor idle.
BUSY = [sys.executable, "-c", "while True: pass"]


def built(cargo, program):
    """Builds a test program; returns its path."""
    words = [*cargo.split(), "-p", PROGRAMS[program][0], "--test", program, "--no-run", "--message-format=json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    made = [message for message in messages if message.get("executable") and message["profile"]["test"]]
    return next(message["executable"] for message in made if message["target"]["name"] == program)


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("--times", type=int, default=200)
    options.add_argument("--loops", type=int, default=4, help="busy loops beside the tests")
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("repeated.log"))
    options.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    options.add_argument("--cargo", default="cargo test", help="the command that builds tests")
    options = options.parse_args()
    executables = {program: built(options.cargo, program) for program in options.only}
    log = options.log.read_text() if options.log.exists() else ""
    loops = [subprocess.Popen(BUSY) for _ in range(options.loops)]
    try:
        for number in range(1, options.times + 1):
            for program, executable in executables.items():
                if re.search(rf"^{program} {number}: ", log, re.M):
                    continue
                began = time.monotonic()
                done = subprocess.run([executable], cwd=PROGRAMS[program][1], capture_output=True, text=True, errors="replace")
                if done.returncode != 0:
                    sys.exit(f"{program} {number}: exit {done.returncode}\n{done.stdout}{done.stderr}")
                result = re.search(r"^test result: .*", done.stdout, re.M)[0]
                with open(options.log, "a") as file:
                    file.write(f"{program} {number}: {time.monotonic() - began:.0f} s, {result}\n")
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    sys.exit(main())
