#!/usr/bin/env python3
"""Builds the image of deploy/container with buildah and runs it with podman, without rights, through a quickstart.

    scripts/container.py --binary target/release/dipaco                    on the image that the Dockerfile names
    scripts/container.py --binary target/release/dipaco --base base.tar    on a root file system of your own

`mmdebstrap --variant=minbase --include=ca-certificates,bash,grep trixie base.tar` makes such a file system from packages of
Debian. Every container has a read-only root, no capability, user 65532, and may write to its volume and /tmp only. The images
lie in a folder that is removed at the end. Prints each step with its output, and ends with 1 if one fails. Needs root, buildah,
podman and runc; where one is missing it says so and ends with 0.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from runs import CORPUS, ROOT, free_port
from steps import step

USER = "65532:65532"
# Enough of everything: seed, router, two workers, evaluation, a server and its completions.
SMALL = {
    "seed_model.steps": 30,
    "train.rounds": 2,
    "train.inner_steps": 5,
}
# crun needs unified cgroups, and limits above those of the caller need a capability that containers of CI lack.
PODMAN = ["--log-level", "error", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000", "--network", "host"]


def play(given, folder):
    storage = ["--root", folder / "images", "--runroot", folder / "running", "--storage-driver", "vfs"]
    podman = ["podman", *storage, *PODMAN]
    base = []
    if given.base.endswith(".tar"):
        step("import the base", *podman, "import", "--quiet", given.base, "localhost/base:latest")
        base = ["--build-arg", "BASE=localhost/base:latest"]
    elif given.base:
        base = ["--build-arg", f"BASE={given.base}"]
    step("pack", ROOT / "scripts/package.py", "container", "--binary", given.binary, "--out", folder)
    # Docker's format keeps the health check.
    step("build", "buildah", *storage, "build", "--isolation", "chroot", "--format", "docker", *base, "--tag", "dipaco",
         folder / "container")
    runs = folder / "runs"
    runs.mkdir()
    os.chown(runs, *map(int, USER.split(":")))
    without_rights = ["--read-only", "--tmpfs", "/tmp", "--user", USER, "--cap-drop", "all",
                      "--security-opt", "no-new-privileges", *LIMITS]
    run = [*podman, "run", "--no-healthcheck", *without_rights, "--volume", f"{runs}:/runs", "--volume", f"{given.text}:/text:ro"]
    step("version", *run, "dipaco", "--version")
    step("licences", *run, "--entrypoint", "ls", "dipaco", "/usr/share/doc/dipaco")
    step("no other file can be written", *run, "--entrypoint", "bash", "dipaco", "-c", "id -u; touch /usr/bin/other", fails=True)
    port = free_port()
    small = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    step("quickstart", *run, "dipaco", "quickstart", "--run", "/runs/mine", "--data", "/text", *small)
    serve = [*podman, "run", *without_rights, "--volume", f"{runs}:/runs", "--detach", "--name", "server", "--env", f"HEALTH_PORT={port}", "dipaco"]
    step("serve", *serve, "serve", "--run", "/runs/mine", "--address", f"127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 60
        while subprocess.run([*map(str, podman), "healthcheck", "run", "server"], capture_output=True).returncode != 0:
            if time.monotonic() > deadline:
                sys.exit("the health check does not see the server")
            time.sleep(0.5)
        step("health check", *podman, "healthcheck", "run", "server")
        owners = {file.stat().st_uid for file in runs.rglob("*")}
        print(f"== files of the run belong to the users {owners}")
        if owners != {65532}:
            sys.exit("the run has files of another user")
    finally:
        step("stop", *podman, "stop", "--time", "20", "server")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/dipaco", help="the program")
    options.add_argument("--base", default="", help="root file system as a .tar, or the name of an image")
    options.add_argument("--text", type=pathlib.Path, default=CORPUS, help="the folder of text")
    given = options.parse_args()
    lacking = [tool for tool in ["buildah", "podman", "runc"] if shutil.which(tool) is None]
    if os.geteuid() != 0 or lacking:
        print(f"skipped: needs root, buildah, podman and runc{': there is no ' if lacking else ''}{', '.join(lacking)}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="container-", dir="/var/tmp") as folder:
        play(given, pathlib.Path(folder))
    print("the image runs without rights")


if __name__ == "__main__":
    main()
