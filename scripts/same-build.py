#!/usr/bin/env python3
"""Builds the packages of one commit twice, in two folders, and compares their bytes.

    scripts/same-build.py --glibc 2.28              with zig: pip install ziglang cargo-zigbuild
    scripts/same-build.py --out FOLDER              keeps both folders there; a call that was interrupted goes on there

Each build is `scripts/package.py wheel deb --build` in a clone. The second clone has a longer path, a CARGO_HOME of its own with
a copy of the registry, and another umask. Prints the SHA-256 of the binary, the module, the wheel and the Debian package, and
ends with 1 if one differs. Two release builds take most of an hour on two cores.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from runs import ROOT, run

KEPT = ["target/package/*/release/dipaco", "target/package/*/release/lib_dipaco.so", "dist/*"]


def build(folder, words, **environment):
    """Clones the last commit and packs it there. Returns name -> SHA-256 of what it made."""
    begun = time.monotonic()
    if folder.exists():
        run("git", "-C", folder, "pull", "--quiet", "--ff-only", ROOT, "HEAD")
    else:
        run("git", "clone", "--quiet", ROOT, folder)
    subprocess.run([folder / "scripts/package.py", "wheel", "deb", "--build", *words], env=os.environ | environment, check=True)
    made = sorted(file for pattern in KEPT for file in folder.glob(pattern))
    print(f"{folder}: {time.monotonic() - begun:.0f} s", flush=True)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in made}


def compare(given, out):
    words = ["--glibc", given.glibc] if given.glibc else []
    first = build(out / "first", words)
    cargo = pathlib.Path(os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo")
    other = out / "a-home-of-its-own"
    shutil.copytree(cargo / "registry", other / "registry", symlinks=True, dirs_exist_ok=True)
    os.umask(0o077)
    second = build(out / "the/second/one", words, CARGO_HOME=str(other))
    for name in sorted(first | second):
        same = first.get(name) == second.get(name)
        print(f"{'same' if same else 'DIFFERS'}  {first.get(name)}  {name}" + ("" if same else f"  {second.get(name)}"))
    return first == second


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--glibc", metavar="2.28", help="the glibc to build for, with zig")
    options.add_argument("--out", type=pathlib.Path, help="a folder for both builds, which are kept there")
    given = options.parse_args()
    print(f"commit {run('git', '-C', ROOT, 'rev-parse', 'HEAD').strip()}", flush=True)
    try:
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            same = compare(given, given.out.resolve())
        else:
            with tempfile.TemporaryDirectory(prefix="same-build-", dir="/var/tmp") as folder:
                same = compare(given, pathlib.Path(folder))
    except subprocess.SubprocessError as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if same else "the two builds differ")


if __name__ == "__main__":
    main()
