#!/usr/bin/env python3
"""Checks and counts walks through the code: the functions that one piece of data enters on its way.

    scripts/count-walks.py                      counts all walks of docs/results/walks
    scripts/count-walks.py --hops FILE...       counts some, and prints their hops

The rule. The head of a walk names its commit, its start, its end and the case.
Hop       One entry of the piece into one of our own functions on the success path of that case. The piece is the data
          itself (a batch, a gradient, a prompt), or the record that stands for it: its message, claim, contribution,
          order, version or event. Closures, generated code and third-party code are no hops.
Twice     A function that the same piece enters again is another hop, and is reported. A loop over parts of the piece
          (rows, blocks, tensors, pieces of an upload) counts as one entry.
Parts     A line `--` begins a part of a walk with another piece that is made of the first: an outer gradient, the
          mean, the version. Twice counts within a part. Other data that joins the piece is not walked, nor is an
          answer on its way back.
Leaves    A function with a body of one line that calls no other hop is no hop: an accessor, a constructor, a lock.
Kernels   A function that computes numbers, a hash or an encoding is one hop. The walk does not go on inside of it.
Aside     Functions that lend memory (a lock, a buffer, a view of a tensor), functions that only run a given closure
          or future, and look-ups of settings and shapes are no hops. Metrics, logs, progress events and wake-ups of
          other tasks are not followed.

The first line of a walk is `commit HASH`. A line that begins with `#` is a comment. A hop is a line
`CLASS FUNCTION FILE`, indented by two spaces below the hop that calls it. The classes are
    o  a step that the walk had before
    k  a kernel of class o
    s  a check, bound or record for security or against faults that it did not have; the note names the finding
    f  a step of a feature that it did not have
A note may follow after `#`. A note that begins with `via` says how the call gets there if the caller does not name the
function: through a channel, a trait object or another library.

The script reads the sources of the walk's commit from git. It checks that each function is in its file, that its
caller names it, and that no leaf has one line. It needs Python 3.11, git, and measure-code.py beside it.
"""
import argparse
import collections
import importlib.util
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
WALKS = ROOT / "docs/results/walks"
LINE = re.compile(r"(?P<indent>(?:  )*)(?P<class>[osfk]) (?P<function>[\w:]+) (?P<file>\S+\.rs)(?:\s+# (?P<note>.*))?$")
COLUMNS = ("hops", "functions", "files", "o", "k", "s", "f", "twice")


def measure_code():
    found = importlib.util.spec_from_file_location("measure_code", pathlib.Path(__file__).with_name("measure-code.py"))
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


class Sources:
    """The functions of the files of one commit: for each name the words and the number of lines of each body."""

    def __init__(self, commit, code):
        self.commit, self.code, self.files = commit, code, {}
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            sys.exit(f"this repository has no commit {commit}: fetch the whole history")

    def bodies(self, file, function):
        if file not in self.files:
            shown = git("show", f"{self.commit}:{file}")
            found = collections.defaultdict(list)
            if shown.returncode == 0:
                source = self.code.Source(file, shown.stdout, False)
                for index, _, body in source.functions():
                    if body:
                        tokens = source.tokens[body[0] : body[1]]
                        words = {token.text for token in tokens if token.kind == "word"}
                        lines = source.tokens[body[1]].line - source.tokens[body[0]].line - 1
                        found[source.text(index + 1)].append((words, lines))
            self.files[file] = found
        return self.files[file].get(function.split("::")[-1], [])


class Hop:
    def __init__(self, number, line):
        found = LINE.match(line)
        if not found:
            sys.exit(f"line {number} is no hop: {line}")
        self.number, self.kind, self.note = number, found["class"], found["note"] or ""
        self.function, self.file = found["function"], found["file"]
        self.depth, self.calls, self.part = len(found["indent"]) // 2, False, 0

    @property
    def name(self):
        return self.function.split("::")[-1]


def read(path):
    """The commit and the hops of a walk."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    commit = re.fullmatch(r"commit ([0-9a-f]{7,40})", head)
    if not commit:
        sys.exit(f"{path}: the first line is `commit HASH`")
    hops, callers, part = [], [], 0
    for number, line in enumerate(lines, 2):
        part += line == "--"
        if not line.strip() or line.startswith("#") or line == "--":
            continue
        hop = Hop(number, line)
        hop.part = part
        if hop.depth > len(callers):
            sys.exit(f"{path}:{number}: a hop is at most one step below its caller")
        del callers[hop.depth :]
        hop.caller = callers[-1] if callers else None
        if hop.caller:
            hop.caller.calls = True
        callers.append(hop)
        hops.append(hop)
    return commit[1], hops


def check(hops, sources):
    """The faults of a walk."""
    for hop in hops:
        bodies = sources.bodies(hop.file, hop.function)
        if not bodies:
            yield hop, f"{hop.file} has no function {hop.name} with a body"
            continue
        if not hop.calls and max(lines for _, lines in bodies) <= 1:
            yield hop, f"{hop.name} is a leaf of one line"
        if hop.caller and not hop.note.startswith("via"):
            callers = sources.bodies(hop.caller.file, hop.caller.function)
            if not any(hop.name in words for words, _ in callers):
                yield hop, f"{hop.caller.name} does not name {hop.name}"


def show(path, commit, hops, print_hops):
    entries = collections.Counter((hop.function, hop.file, hop.part) for hop in hops)
    functions = {(hop.function, hop.file) for hop in hops}
    kinds = collections.Counter(hop.kind for hop in hops)
    twice = {key: count for key, count in entries.items() if count > 1}
    files = {hop.file for hop in hops}
    values = [len(hops), len(functions), len(files), *(kinds[kind] for kind in "oksf"), len(twice)]
    row = "".join(f"{value:>{max(6, len(column) + 2)}}" for value, column in zip(values, COLUMNS))
    print(f"{path.stem:<34}{commit[:7]:>9}{row}")
    for (function, file, _), count in twice.items():
        print(f"    entered {count} times: {function} {file}")
    for hop in hops if print_hops else []:
        note = f"  # {hop.note}" if hop.note else ""
        print(f"    {'  ' * hop.depth}{hop.kind} {hop.function} {hop.file}{note}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", action="store_true", help="print the hops")
    parser.add_argument("walks", nargs="*", type=pathlib.Path, help="files of walks")
    options = parser.parse_args()
    code, wrong = measure_code(), 0
    print(f"{'walk':<34}{'commit':>9}" + "".join(f"{column:>{max(6, len(column) + 2)}}" for column in COLUMNS))
    for path in options.walks or sorted(WALKS.glob("*.txt")):
        commit, hops = read(path)
        show(path, commit, hops, options.hops)
        for hop, fault in check(hops, Sources(commit, code)):
            wrong += 1
            print(f"    {path.name}:{hop.number}: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
