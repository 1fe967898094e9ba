#!/usr/bin/env python3
"""Plays the first section of docs/deploy.md, "From three empty machines to a served model", on three machines of namespaces.

    sudo scripts/three-machines.py --package dist/dipaco_0.1.0_amd64.deb
    sudo scripts/three-machines.py --binary target/release/dipaco       packs it first, as scripts/package.py deb does

The commands are the lines `MACHINE$ COMMAND` of the page, word for word. Each machine has a network namespace with an address
of its own, its own processes, and a file system whose changes nobody else sees: the home folder is empty, and nothing of this
repository is in it. The machines know each other by name and may log in to each other with ssh, as the page asks. The machine
`lead` begins with what the page says: the package and a folder of text.

Prints each command, its output and its seconds, and at the end how many lines it played. Ends with 1 if a command fails. Needs
Linux, root, `ip`, `unshare`, overlayfs, sshd, rsync and curl; where one is missing it says so and ends with 0.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from runs import CORPUS, ROOT
from namespaces import Namespaces, sh

SECTION = "## From three empty machines to a served model"
# A command that stays: the text after which the next line is played, or None to go on at once.
STAYS = {"dipaco worker": None, "dipaco serve": "serving "}
# Longest time of one command in seconds.
LIMIT = 1800


def lines_of_page(page):
    """The machines and commands of the section."""
    section = page.split(SECTION + "\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^(\w+)\$ +(.+)$", section, re.MULTILINE)


class Machine:
    """Namespaces of its own over a copy of this system, and one terminal."""

    def __init__(self, name, namespace, folder, hosts):
        self.name, self.staying = name, []
        root = folder / name
        root.mkdir()
        begin = f"""
            mount --make-rprivate /
            mount -t tmpfs tmpfs {root}
            mkdir {root}/changes {root}/work {root}/root
            mount -t overlay overlay -o lowerdir=/,upperdir={root}/changes,workdir={root}/work {root}/root
            cd {root}/root
            for empty in .{ROOT} root tmp run; do mount -t tmpfs tmpfs $empty; done
            mount -t proc proc proc; mount --rbind /dev dev; mount --rbind /sys sys
            chmod 700 root; chmod 1777 tmp; mkdir -p run/sshd root/.ssh
            cp {folder}/key root/.ssh/id_ed25519; cp {folder}/key.pub root/.ssh/authorized_keys
            echo 'StrictHostKeyChecking accept-new' > root/.ssh/config; chmod -R go= root/.ssh
            rm -f usr/bin/dipaco usr/local/bin/dipaco etc/hostname etc/hosts
            echo '{hosts}' > etc/hosts
            hostname {name}
            ssh-keygen -A -f {root}/root > /dev/null
            exec chroot . sh -c 'echo begun; exec sleep infinity'
        """
        words = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts", "--pid", "--fork", "sh", "-ec", begin]
        self.first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        if self.first.stdout.readline() != "begun\n":
            sys.exit(f"the machine {name} did not begin")
        # `unshare --fork` has one child: the first process of the machine.
        self.pid = int(pathlib.Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text().split()[0])
        self.play("/usr/sbin/sshd", quiet=True)

    def words(self, command):
        enter = ["nsenter", "--target", str(self.pid), "--all", "--root", "--wd", "env", "-i", "HOME=/root", "TERM=dumb", "NO_COLOR=1",
                 "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"]
        # An empty machine of the page has a user with sudo; here root is alone.
        return [*enter, "bash", "-c", f'cd; sudo() {{ "$@"; }}; {command}']

    def play(self, command, quiet=False, until="the end"):
        """Runs a command to its end, or `until` it prints a text, or without waiting if that is None."""
        begun = time.monotonic()
        if not quiet:
            print(f"{self.name}$ {command}", flush=True)
        process = subprocess.Popen(self.words(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, cwd="/")
        ready, said = threading.Event(), []

        def read():
            for line in process.stdout:
                # What a terminal shows in the end of a line that was written several times.
                line = line.decode(errors="replace").rstrip().rsplit("\r", 1)[-1] + "\n"
                said.append(line)
                if not quiet:
                    print(f"  {self.name}: {line}", end="", flush=True)
                if until and until in line:
                    ready.set()
            process.wait()
            ready.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if until is None:
            self.staying.append((command, process, reader))
            return ""
        if not ready.wait(LIMIT):
            sys.exit(f"{self.name}$ {command}: no end after {LIMIT} s")
        if until != "the end" and process.poll() is None:
            self.staying.append((command, process, reader))
        elif process.wait() != 0:
            sys.exit(f"{self.name}$ {command}: exit {process.returncode}\n{''.join(said) if quiet else ''}")
        if not quiet:
            print(f"  ({time.monotonic() - begun:.1f} s)", flush=True)
        return "".join(said)

    def put(self, path, to):
        """Copies a file or folder of this system into the home folder."""
        pack = subprocess.Popen(["tar", "-C", str(path.parent), "-cf", "-", path.name], stdout=subprocess.PIPE)
        unpack = subprocess.run(self.words(f"tar -xf - && [ {path.name} = {to} ] || mv {path.name} {to}"), stdin=pack.stdout)
        if pack.wait() != 0 or unpack.returncode != 0:
            sys.exit(f"{path} can't be copied to {self.name}")

    def end(self):
        """Ends every process of the machine."""
        self.first.send_signal(signal.SIGKILL)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.first.wait()


def missing():
    """What this machine lacks, or None."""
    tools = [tool for tool in ["ip", "unshare", "nsenter", "sshd", "ssh-keygen", "rsync", "curl"] if shutil.which(tool) is None]
    if os.geteuid() != 0 or tools:
        return "needs root" + "".join(f", {tool}" for tool in tools)
    if "overlay" not in pathlib.Path("/proc/filesystems").read_text():
        return "needs overlayfs"
    return None


def play(lines, package, text):
    names = list(dict.fromkeys(name for name, _ in lines))
    with tempfile.TemporaryDirectory(prefix="three-machines-", dir="/var/tmp") as folder:
        folder, bridge, machines = pathlib.Path(folder), None, {}
        try:
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key")
            bridge = Namespaces(len(names))
            hosts = "\n".join(["127.0.0.1 localhost", *(f"{bridge.address(at)} {name}" for at, name in enumerate(names))])
            for at, name in enumerate(names):
                machines[name] = Machine(name, bridge.names[at], folder, hosts)
            machines["lead"].put(package, package.name)
            machines["lead"].put(text, "text")
            for name, command in lines:
                until = next((ready for start, ready in STAYS.items() if command.startswith(start)), "the end")
                output = machines[name].play(command, until=until)
            worker = [entry for entry in machines["worker"].staying if entry[0].startswith("dipaco worker")]
            for command, process, reader in worker:
                process.wait(timeout=60)
                reader.join()
                if process.returncode != 0:
                    sys.exit(f"worker$ {command}: exit {process.returncode}")
        finally:
            for machine in machines.values():
                machine.end()
            if bridge:
                bridge.remove()
    return output


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--package", type=pathlib.Path, help="the Debian package")
    options.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/dipaco", help="without --package: the program")
    options.add_argument("--text", type=pathlib.Path, default=CORPUS, help="the folder of text")
    given = options.parse_args()
    lines = lines_of_page((ROOT / "docs/deploy.md").read_text())
    if reason := missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as packed:
        package = given.package
        if package is None:
            words = [ROOT / "scripts/package.py", "deb", "--binary", given.binary, "--out", packed]
            package = pathlib.Path(sh(*words).stdout.strip())
        begun = time.monotonic()
        answer = play(lines, package.resolve(), given.text.resolve())
    if '"text"' not in answer:
        sys.exit("the last command of the page got no completion")
    print(f"{len(lines)} lines, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
