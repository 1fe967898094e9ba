"""What the scripts that start runs have in common."""

import json
import os
import signal
import socket
import subprocess
import sys
import time


def run(dipaco, *words):
    """Runs a command of the program to its end; returns what it printed."""
    done = subprocess.run([str(dipaco), *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bits(dipaco, folder):
    """Hashes of all that training decides, and what `status --data` says."""
    training = json.loads(run(dipaco, "status", "--json", "--run", folder))["training"]
    fragments = [fragment for module in training["modules"] for fragment in module["fragments"]]
    hashes = [fragment[part]["hash"] for fragment in fragments for part in ("weights", "momentum")]
    # A state may stay with its worker.
    hashes += [path["state"]["hash"] for path in training["paths"] if path.get("state")]
    return hashes, run(dipaco, "status", "--data", "--run", folder)


class Process:
    """A process that can be started again when it was killed."""

    def __init__(self, log, command):
        self.log, self.command, self.child, self.restarts = log, [str(word) for word in command], None, -1
        self.start()

    def start(self):
        self.restarts += 1
        out = open(self.log, "ab")
        self.child = subprocess.Popen(self.command, stdout=out, stderr=out, start_new_session=True)

    def send(self, number):
        if self.child.poll() is None:
            os.killpg(self.child.pid, number)

    def ended(self):
        return self.child.poll() is not None

    def most_resident(self):
        """The most memory that the process has held so far, in MiB; nothing once it has ended."""
        try:
            status = open(f"/proc/{self.child.pid}/status").read()
        except FileNotFoundError:
            return None
        line = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
        return line and int(line.split()[1]) / 1024


def end(*processes):
    """Ends processes that may be stopped, and waits for them."""
    for process in processes:
        process.send(signal.SIGCONT)
        # Not SIGINT: a process that a shell without job control started in the background ignores it until it has a
        # handler.
        process.send(signal.SIGTERM)
    for process in processes:
        process.child.wait(timeout=60)


class Led:
    """A run that is led by a coordinator's process of its own, with workers and perhaps synchronizers."""

    def __init__(self, dipaco, folder, run_folder, *settings):
        self.dipaco, self.folder, self.run = dipaco, folder, run_folder
        address = f"127.0.0.1:{free_port()}"
        lead = ["coordinator", "-v", "--run", run_folder, "--listen", address, "--advertise", address, "--resume"]
        self.leader = Process(folder / "coordinator.log", [dipaco, *lead, "--json", *settings])
        self.token = run_folder / "join.token"
        while not self.token.exists():
            if self.leader.ended():
                sys.exit(f"the coordinator has ended: {self.leader.log}")
            time.sleep(0.05)

    def worker(self, name, threads=1):
        words = ["worker", "-v", "--join", self.token, "--name", name, "--cache", self.folder / f"cache-{name}"]
        return Process(self.folder / f"{name}.log", [self.dipaco, *words, "--threads", threads])

    def synchronizer(self, name, modules):
        # At the same port each time, so that workers hear from the next process that the one before is gone.
        address = f"127.0.0.1:{free_port()}"
        words = ["synchronizer", "-v", "--run", self.run, "--modules", modules, "--name", name, "--listen", address]
        return Process(self.folder / f"{name}.log", [self.dipaco, *words])

    def finished(self):
        """Whether the run is complete; starts the coordinator again when it was killed."""
        if not self.leader.ended():
            return False
        if self.leader.child.returncode == 0:
            return True
        if self.leader.child.returncode != -signal.SIGKILL:
            sys.exit(f"the coordinator ended by itself ({self.leader.child.returncode}): {self.leader.log}")
        self.leader.start()
        return False
