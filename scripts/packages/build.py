"""Builds the binary and the library of the Python module for packages. The same sources, Rust and C compiler give the same
bytes in every folder: paths of this machine and the time of the build get into none of them."""
import os
import platform
import shutil
import subprocess
import sys

from .binary import PackageError
from .commit_of_sources import commit_of_sources

# Another version of zig makes other bytes.
ZIG = "ziglang==0.17.1 cargo-zigbuild==0.24.0"
# What stands for the folder of the sources, and for that of other people's packages, in messages of the program.
SOURCES, PACKAGES = "/dipaco", "/cargo"


def build(root, oldest, seconds):
    """Builds both on a machine that scripts/setup.sh has set up; for the glibc `oldest`, if there is one. `seconds` is the time
    that stands in place of the build's. Returns the path of the binary, which the library lies beside."""
    triple = f"{platform.machine()}-unknown-linux-gnu"
    folders = {root: SOURCES, os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo"): PACKAGES}
    flags = [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]
    tools = root / "scripts/packages"
    environment = {
        **os.environ,
        # Tools by their names: cargo puts the linker's into the names of its files.
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "CMAKE": "cmake.sh",
        "SOURCE_DATE_EPOCH": str(seconds),
        "DIPACO_COMMIT": commit_of_sources(root),
        # In place of those of this machine. HDF5 has the names of its files in messages.
        "CFLAGS": " ".join(f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()),
    }
    if oldest:
        if shutil.which("cargo-zigbuild") is None:
            raise PackageError(f"there is no cargo-zigbuild to build for another glibc: pip install {ZIG}")
        flags.append("-Clinker=zig-cc.sh")
        environment |= {"DIPACO_GLIBC": f"{oldest[0]}.{oldest[1]}", "CC": "zig-cc.sh"}
    environment["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(flags)
    # A folder of its own, because these flags would build all of target/release again. With --target they don't count for
    # programs that only the build runs.
    target = root / "target/package"
    cargo = f"cargo build --release --locked --target {triple} --target-dir '{target}' " \
            "--package dipaco-cli --package dipaco-python --bin dipaco --lib"
    # On a line of its own: bash ignores `set -e` in a command before `&&`.
    subprocess.run(["bash", "-c", f"source scripts/setup.sh\n{cargo}"], cwd=root, env=environment, check=True, stdout=sys.stderr)
    return target / triple / "release/dipaco"
