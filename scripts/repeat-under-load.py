#!/usr/bin/env python3
"""Runs the tests that kill processes and coordinators again and again, beside busy loops.

    scripts/repeat-under-load.py --times 200 --loops 4 --jobs 8 --log repeated.log

Builds the test programs `chaos` (crates/train) and `kill` (tests) once. The tests wait for connections that end most of the
time, so --jobs runs at a time save time, and are a load beside the loops. Each line of the log is one run of one program: its
number, its seconds, the commit, and the line with which the test program ends. A repeated call makes the runs that the log
lacks. A failure starts no further run, prints the output of the test, and ends with 1.
"""

import concurrent.futures
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from runs import ROOT, commit, parser, test_programs

# The test programs, with the folders of their packages.
PROGRAMS = {"chaos": ROOT / "crates/train", "kill": ROOT / "tests"}
# The program that the tests of processes start.
DIPACO = "dipaco"
# A loop that leaves no processor idle.
BUSY = [sys.executable, "-c", "while True: pass"]


def build_folders(programs, dipaco, parent, jobs):
    """A folder for each run at a time, laid out as cargo's: the tests keep their files in it, and another build meanwhile
    does not change what runs."""
    folders = [pathlib.Path(parent, str(job), "debug") for job in range(jobs)]
    for folder in folders:
        (folder / "deps").mkdir(parents=True)
        for program, executable in {**programs, DIPACO: dipaco}.items():
            name = DIPACO if program == DIPACO else f"deps/{program}"
            copy, first = folder / name, folders[0] / name
            shutil.copy2(executable, copy) if folder == folders[0] else os.link(first, copy)
    return folders


def main():
    options = parser(__doc__, dipaco=None)
    options.add_argument("--times", type=int, default=200)
    options.add_argument("--loops", type=int, default=4, help="busy loops beside the tests")
    options.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options.add_argument("--log", type=pathlib.Path, default=pathlib.Path("repeated.log"))
    options.add_argument("--only", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    options.add_argument("--cargo", default="cargo", help="the program that builds")
    options = options.parse_args()
    programs = test_programs(options.cargo)
    executables = {program: programs[PROGRAMS[program], program] for program in options.only}
    dipaco = pathlib.Path(programs[PROGRAMS["kill"], "kill"]).parent.parent / DIPACO
    played_at = commit()
    log = options.log.read_text() if options.log.exists() else ""
    failed, writing = threading.Event(), threading.Lock()

    def run(program, number):
        if failed.is_set():
            return
        folder = free.get()
        began = time.monotonic()
        command = [folder / "deps" / program]
        done = subprocess.run(command, cwd=PROGRAMS[program], capture_output=True, text=True, errors="replace")
        free.put(folder)
        took = time.monotonic() - began
        if done.returncode != 0:
            failed.set()
            print(f"{program} {number}: exit {done.returncode}\n{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
            return
        result = re.search(r"^test result: .*", done.stdout, re.M)[0]
        with writing, open(options.log, "a") as file:
            file.write(f"{program} {number}: {took:.0f} s, {options.jobs} at a time, {played_at}, {result}\n")

    kept = tempfile.TemporaryDirectory()
    free = queue.SimpleQueue()
    for folder in build_folders(executables, dipaco, kept.name, options.jobs):
        free.put(folder)
    loops = [subprocess.Popen(BUSY) for _ in range(options.loops)]
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            runs = [
                pool.submit(run, program, number)
                for number in range(1, options.times + 1)
                for program in executables
                if not re.search(rf"^{program} {number}: ", log, re.M)
            ]
        for ended in runs:
            ended.result()
    finally:
        for loop in loops:
            loop.kill()
    return 1 if failed.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
