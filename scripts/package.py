#!/usr/bin/env python3
"""Packs one binary of dipaco: as a wheel, as a Debian package, and as the folder that a container is built from. The wheel
also has the Python module, whose library `lib_dipaco.so` lies beside the binary.

    scripts/package.py wheel                          target/release/dipaco into dist/
    scripts/package.py wheel --build                  builds release binary and module first
    scripts/package.py wheel --glibc 2.28             fails if the binary needs a newer glibc, and names the symbols
    scripts/package.py wheel --build --glibc 2.28     links for that glibc; needs `pip install ziglang cargo-zigbuild`
    scripts/package.py deb container --out /tmp/out   two at once
    scripts/package.py wheel --binary target/debug/dipaco

Prints the path of each package. The same binary and the same SOURCE_DATE_EPOCH give the same bytes. Without the variable
the time of the last commit counts. Needs Python 3 and readelf; `deb` needs dpkg-deb.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys

from packages.binary import Binary, PackageError
from packages.container import write_container
from packages.deb import write_deb
from packages.time_of_sources import time_of_sources
from packages.wheel import write_wheel

ROOT = pathlib.Path(__file__).resolve().parent.parent
KINDS = {"wheel": write_wheel, "deb": write_deb, "container": write_container}


def glibc(text):
    """A version of glibc such as 2.28."""
    major, minor = text.split(".")
    return int(major), int(minor)


def build(oldest):
    """Builds the release binary and the Python module on a machine that scripts/setup.sh has set up; for the glibc `oldest`,
    if there is one."""
    steps = "source scripts/setup.sh"
    linker = []
    if oldest:
        if shutil.which("cargo-zigbuild") is None:
            raise PackageError("there is no cargo-zigbuild to link for another glibc: pip install ziglang cargo-zigbuild")
        steps += f" && export DIPACO_GLIBC={oldest[0]}.{oldest[1]}"
        linker = ["--", "-C", f"linker={ROOT}/scripts/packages/zig-cc.sh"]
    for target in ("--package dipaco-cli --bin dipaco", "--package dipaco-python --lib"):
        steps += f" && cargo rustc --release --locked {target} --target-dir target {' '.join(linker)}"
    subprocess.run(["bash", "-c", steps], cwd=ROOT, check=True, stdout=sys.stderr)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kind", nargs="+", choices=KINDS)
    options.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/dipaco", help="the program")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="folder of the packages")
    options.add_argument("--build", action="store_true", help="build target/release/dipaco first")
    options.add_argument("--glibc", type=glibc, metavar="2.28", help="the newest glibc that the binary may need")
    given = options.parse_args()
    try:
        if given.build:
            build(given.glibc)
        binary = Binary(given.binary)
        if given.glibc:
            binary.runs_on_glibc(given.glibc)
        given.out.mkdir(parents=True, exist_ok=True)
        for kind in given.kind:
            print(KINDS[kind](binary, ROOT, given.out, time_of_sources(ROOT)))
    except (PackageError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
