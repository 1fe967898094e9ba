#!/usr/bin/env python3
"""Installs a wheel on a machine without a compiler and without a network, and plays a quickstart there.

    scripts/check-wheel.py dist/dipaco-*.whl --base base.tar
    scripts/check-wheel.py dist/dipaco-*.whl --base base.tar --set train.rounds=8      a longer quickstart

The machine is a root file system in namespaces of its own: `mmdebstrap --variant=minbase --include=python3-venv bullseye
base.tar` makes one of Debian 11. The script asks auditwheel about the tag, installs the wheel with pip into a fresh virtual
environment, runs `dipaco doctor` and `dipaco quickstart`, and reads the run with the Python module.

Prints each step with its output, and ends with 1 if one fails. Needs Linux, root, `unshare` and `ip`, and auditwheel in .venv
(scripts/python.sh) or at --auditwheel.
"""

import argparse
import os
import pathlib
import shlex
import sys
import tempfile

from runs import CORPUS, ROOT, settings
from steps import step

# Enough of everything: seed, router, two workers, evaluation, a server and its completions.
SMALL = {"seed_model.steps": 60, "train.rounds": 4, "train.inner_steps": 10}
NO_COMPILER = "for tool in cc gcc clang cargo rustc cmake make; do command -v $tool && exit; done; exit 1"
READ = """
import dipaco
run = dipaco.Run("mine")
print("dipaco", dipaco.__version__, "context", run.context)
print("route", [route.path for route in run.route(["fn main() {", "def main():"])])
print("generate", repr(run.generate(["fn main() {"], max_tokens=8, temperature=0)[0].text))
print("rounds", run.metrics("round_completed")[-1]["round"])
"""


class Machine:
    """A root file system of its own, in which a command sees no other file, no other process and no network."""

    def __init__(self, base, folder):
        self.root = folder / "root"
        self.root.mkdir()
        step("unpack the base", "tar", "--extract", "--file", base, "--directory", self.root, "--exclude", "./dev/*")

    def run(self, name, *words, fails=False):
        """A step on the machine."""
        begin = f"""
            set -e; cd {shlex.quote(str(self.root))}
            ip link set lo up
            mount --rbind /dev dev; mount -t proc proc proc; mount -t tmpfs tmpfs tmp; chmod 1777 tmp
            exec chroot . /usr/bin/env -i -C /srv HOME=/srv PATH=/srv/venv/bin:/usr/bin:/bin "$@"
        """
        unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        return step(name, *unshare, "bash", "-c", begin, "machine", *words, fails=fails)

    def bring(self, path, name):
        """Copies a file or folder into /srv, where every command runs."""
        step(f"bring {name}", "cp", "-R", path, self.root / "srv" / name)


def play(given, folder):
    step("what auditwheel says", given.auditwheel, "show", given.wheel)
    machine = Machine(given.base, folder)
    machine.bring(given.wheel, given.wheel.name)
    machine.bring(given.text, "text")
    machine.run("the machine", "sh", "-c", "grep PRETTY /etc/os-release; ldd --version | head -n 1; python3 --version")
    machine.run("it has no compiler", "sh", "-c", NO_COMPILER, fails=True)
    machine.run("a virtual environment", "python3", "-m", "venv", "venv")
    machine.run("install", "pip", "install", "--no-index", "--disable-pip-version-check", f"./{given.wheel.name}")
    machine.run("version", "dipaco", "--version")
    machine.run("doctor", "dipaco", "doctor")
    small = SMALL | dict(word.split("=", 1) for word in given.set)
    machine.run("quickstart", "dipaco", "quickstart", "--run", "mine", "--data", "text", *settings(small))
    machine.run("the module reads the run", "python", "-c", READ)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("wheel", type=pathlib.Path)
    options.add_argument("--base", type=pathlib.Path, required=True, help="root file system as a .tar, with python3-venv")
    options.add_argument("--text", type=pathlib.Path, default=CORPUS, help="the folder of text")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the quickstart")
    options.add_argument("--auditwheel", default=ROOT / ".venv/bin/auditwheel", help="the program auditwheel")
    given = options.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root may make a machine of namespaces")
    with tempfile.TemporaryDirectory(prefix="wheel-", dir="/var/tmp") as folder:
        play(given, pathlib.Path(folder))
    print("the wheel works on a machine without a compiler")


if __name__ == "__main__":
    main()
