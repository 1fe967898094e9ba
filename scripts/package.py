#!/usr/bin/env python3
"""Packs one binary of dipaco: as a wheel, as a Debian package, and as the folder that a container is built from. The wheel
also has the Python module, whose library `lib_dipaco.so` lies beside the binary.

    scripts/package.py wheel                          target/release/dipaco into dist/
    scripts/package.py wheel --build                  builds a release binary and the module first, below target/package
    scripts/package.py wheel --glibc 2.28             fails if binary or module need a newer glibc, and names the symbols
    scripts/package.py wheel --build --glibc 2.28     builds for that glibc; needs `pip install ziglang cargo-zigbuild`
    scripts/package.py deb container --out /tmp/out   two at once
    scripts/package.py wheel --binary target/debug/dipaco

Prints the path of each package. The same binary and the same SOURCE_DATE_EPOCH give the same bytes. Without the variable
the time of the last commit counts. --build keeps the folders of this machine out of the binary. Needs Python 3 and
readelf; `deb` needs dpkg-deb.
"""
import argparse
import pathlib
import subprocess
import sys

from packages.binary import Binary, Extension, PackageError
from packages.build import build
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


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("kind", nargs="+", choices=KINDS)
    program = options.add_mutually_exclusive_group()
    program.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/dipaco", help="the program")
    program.add_argument("--build", action="store_true", help="build the program, and the module beside it")
    options.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="folder of the packages")
    options.add_argument("--glibc", type=glibc, metavar="2.28", help="the newest glibc that the binary may need")
    given = options.parse_args()
    try:
        seconds = time_of_sources(ROOT)
        binary = Binary(build(ROOT, given.glibc, seconds) if given.build else given.binary)
        if given.glibc:
            for file in [binary, Extension(binary)] if "wheel" in given.kind else [binary]:
                file.runs_on_glibc(given.glibc)
        given.out.mkdir(parents=True, exist_ok=True)
        for kind in given.kind:
            print(KINDS[kind](binary, ROOT, given.out, seconds))
    except (PackageError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
