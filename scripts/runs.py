"""The program, its runs and its processes, for the scripts of this folder.

The tests have their harness in Rust (tests/src). It waits for lines and files and never for time. The scripts measure
instead: they stop and restart processes by the clock, sample their memory, and take a release binary from anywhere.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Frozen text, so that two measurements prepare the same documents.
CORPUS = ROOT / "tests" / "fixtures" / "corpus"
VALIDATION = ROOT / "tests" / "fixtures" / "validation.txt.gz"
# The configuration of the smallest run.
TINY = ROOT / "tests" / "fixtures" / "tiny.toml"


def parser(description, dipaco=ROOT / "target/release/dipaco"):
    """Command line options: the script's own text as --help, and the binary."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if dipaco:
        options.add_argument("--dipaco", type=lambda path: pathlib.Path(path).resolve(), default=dipaco, help="the binary")
    return options


def run(*words, cwd=None):
    """Runs a command to its end; returns its standard output."""
    words = [str(word) for word in words]
    try:
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{words[0]} can't be run: {error}")
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def commit():
    """The commit of the checkout, short."""
    return run("git", "rev-parse", "--short", "HEAD", cwd=ROOT).strip()


def test_programs(cargo):
    """Builds the tests of all packages once; returns each test program by its package's folder and its name. The name of a
    library's own tests is "lib"."""
    programs = {}
    built = run(cargo, "test", "--workspace", "--locked", "--no-run", "--message-format=json", cwd=ROOT)
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            target = message["target"]
            name = "lib" if "lib" in target["kind"] else target["name"]
            programs[pathlib.Path(message["manifest_path"]).parent, name] = message["executable"]
    return programs


def settings(values):
    """The words that set these configuration keys."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def levels(first, second):
    """The topology of a model of four blocks: so many modules of the first half, and of the second half."""
    return f"""
[[topology.levels]]
modules = {first}
blocks = "0..2"
embedding = true

[[topology.levels]]
modules = {second}
blocks = "2..4"
head = true
"""


def seed_and_route(dipaco, folder, *words):
    """Trains the seed of a run whose text is prepared, and divides the text; `words` are options of `dipaco seed`."""
    run(dipaco, "seed", "--run", folder, *words)
    run(dipaco, "route", "fit", "--run", folder)
    run(dipaco, "route", "assign", "--run", folder)


def untrained(dipaco, folder, config, text=CORPUS, *words):
    """Makes a run that is ready to be trained; `words` are options of `dipaco prepare`."""
    run(dipaco, "prepare", text, "--run", folder, "--config", config, *words)
    seed_and_route(dipaco, folder)


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bits(dipaco, folder):
    """Hashes of all results of training, and the output of `status --data`."""
    training = json.loads(run(dipaco, "status", "--json", "--run", folder))["training"]
    fragments = [fragment for module in training["modules"] for fragment in module["fragments"]]
    hashes = [fragment[part]["hash"] for fragment in fragments for part in ("weights", "momentum")]
    # A state may stay with its worker.
    hashes += [path["state"]["hash"] for path in training["paths"] if path.get("state")]
    return hashes, run(dipaco, "status", "--data", "--run", folder)


def wait_for_token(run_folder, has_ended, log):
    """Waits until a coordinator has written its join token; returns its path."""
    token = run_folder / "secrets" / "join.token"
    while not token.exists():
        if has_ended():
            sys.exit(f"the coordinator has ended: {log}\n{pathlib.Path(log).read_text(errors='replace')}")
        time.sleep(0.05)
    return token


class Process:
    """A process that can be started again after a kill."""

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
        """The most memory that the process has held so far, in MiB; None once it has ended."""
        try:
            status = open(f"/proc/{self.child.pid}/status").read()
        except FileNotFoundError:
            return None
        line = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
        return line and int(line.split()[1]) / 1024

    def processor_seconds(self):
        """The processor time that the process has taken so far, in seconds; None once it has ended."""
        try:
            stat = open(f"/proc/{self.child.pid}/stat").read()
        except FileNotFoundError:
            return None
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def end(*processes):
    """Ends processes, stopped ones too, and waits for them."""
    for process in processes:
        process.send(signal.SIGCONT)
        # Not SIGINT: a process that a shell without job control started in the background ignores it until it has a
        # handler.
        process.send(signal.SIGTERM)
    for process in processes:
        process.child.wait(timeout=60)


class Led:
    """A run with a coordinator, workers and perhaps synchronizers, each a process."""

    def __init__(self, dipaco, folder, run_folder, *settings):
        self.dipaco, self.folder, self.run = dipaco, folder, run_folder
        address = f"127.0.0.1:{free_port()}"
        lead = ["coordinator", "-v", "--run", run_folder, "--listen", address, "--advertise", address, "--resume"]
        self.leader = Process(folder / "coordinator.log", [dipaco, *lead, "--json", *settings])
        self.token = wait_for_token(run_folder, self.leader.ended, self.leader.log)

    def worker(self, name, threads=1):
        words = ["worker", "-v", "--join", self.token, "--name", name, "--cache", self.folder / f"cache-{name}"]
        return Process(self.folder / f"{name}.log", [self.dipaco, *words, "--threads", threads])

    def synchronizer(self, name, modules, *options):
        # The same port each time: the next process tells workers that its predecessor has ended.
        address = f"127.0.0.1:{free_port()}"
        words = ["synchronizer", "-v", "--run", self.run, "--modules", modules, "--name", name, "--listen", address]
        return Process(self.folder / f"{name}.log", [self.dipaco, *words, *options])

    def finished(self):
        """Returns whether the run is complete; starts a killed coordinator again."""
        if not self.leader.ended():
            return False
        if self.leader.child.returncode == 0:
            return True
        if self.leader.child.returncode != -signal.SIGKILL:
            sys.exit(f"the coordinator ended by itself ({self.leader.child.returncode}): {self.leader.log}")
        self.leader.start()
        return False
