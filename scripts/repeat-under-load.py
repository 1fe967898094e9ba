#!/usr/bin/env python3
"""Runs the tests that kill processes and coordinators again and again, beside busy loops.

    scripts/repeat-under-load.py --times 200 --loops 4 --log repeated.log

Builds the test programs `chaos` (crates/train) and `kill` (tests) once. Each line of the log is one run of one program: its
number, its seconds, the commit, and the line with which the test program ends. A repeated call goes on after the last complete
run of the log. Ends with 1 at the first failure, after printing the output of the test.
"""

import pathlib
import re
import subprocess
import sys
import time

from runs import ROOT, commit, parser, test_programs

# The test programs, with the folders of their packages.
PROGRAMS = {"chaos": ROOT / "crates/train", "kill": ROOT / "tests"}
# A loop that leaves no processor idle.
BUSY = [sys.executable, "-c", "while True: pass"]


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("--times", type=int, default=200)
    options.add_argument("--loops", type=int, default=4, help="busy loops beside the tests")
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("repeated.log"))
    options.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    options.add_argument("--cargo", default="cargo", help="the program that builds")
    options = options.parse_args()
    programs = test_programs(options.cargo)
    executables = {program: programs[PROGRAMS[program], program] for program in options.only}
    played_at = commit()
    log = options.log.read_text() if options.log.exists() else ""
    loops = [subprocess.Popen(BUSY) for _ in range(options.loops)]
    try:
        for number in range(1, options.times + 1):
            for program, executable in executables.items():
                if re.search(rf"^{program} {number}: ", log, re.M):
                    continue
                began = time.monotonic()
                done = subprocess.run([executable], cwd=PROGRAMS[program], capture_output=True, text=True, errors="replace")
                if done.returncode != 0:
                    sys.exit(f"{program} {number}: exit {done.returncode}\n{done.stdout}{done.stderr}")
                result = re.search(r"^test result: .*", done.stdout, re.M)[0]
                with open(options.log, "a") as file:
                    file.write(f"{program} {number}: {time.monotonic() - began:.0f} s, {played_at}, {result}\n")
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    sys.exit(main())
