#!/usr/bin/env python3
"""Plays a run on a Slurm with two emulated nodes, with the files that `dipaco launch slurm` writes and the lines that it prints.

    sudo scripts/slurm.py                                         about 20 minutes on two cores
    sudo scripts/slurm.py --datatrove .venv/bin/python            plays deploy/datatrove/corpus.py on Slurm too

The program is called `dipaco`, and does not lie in /tmp, of which each node has its own.

Every file passes `sbatch --test-only`. Then the printed lines submit everything, from text to a trained run, and the script
disturbs it. It kills the program of one task of the arrays of `prepare` and `route assign`; the task's script must requeue it. It
preempts the node n2 by a job of higher priority. It drains the node of the coordinator and requeues the coordinator, which must
come back on the other node and port. And it gives the workers a time limit. Each disturbance must find the run incomplete.
At the end all jobs must be COMPLETED, text and shards must have the bytes of a run without parts, every inner step must count
once (`dipaco status --data`), and the weights must be those of an undisturbed training.

Prints one line for each event, the jobs and the accounts, and ends with 1 if something differs. Needs what scripts/slurm_cluster.py
needs; where it is missing it says so and ends with 0.
"""

import gzip
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from namespaces import sh
from runs import CORPUS, ROOT, bits, parser, run, seed_and_route, settings
from slurm_cluster import Cluster, missing

PARTS, WORKERS = 4, 3
# Time limit of the workers in minutes. Slurm sends their signal two to three minutes before.
LIMIT = 4
# Longest time of the whole chain in seconds.
CHAIN = 3600
CONFIG = ROOT / "tests/fixtures/tiny.toml"
SETTINGS = {"train.inner_steps": 50, "routing.features": "seed", "routing.feature_blocks": 2, "train.threads_per_worker": 1}


class Play:
    """A run whose jobs are submitted."""

    def __init__(self, cluster, given, folder):
        self.cluster, self.given, self.folder = cluster, given, folder
        self.dipaco, self.run, self.jobs_folder = given.dipaco, folder / "run", folder / "jobs"
        self.jobs_folder.mkdir()
        self.text = text(folder / "text", given.copies)
        self.options = settings(SETTINGS | {"train.rounds": given.rounds})
        self.begun = time.monotonic()

    def say(self, what):
        print(f"{time.monotonic() - self.begun:6.0f} s  {what}", flush=True)

    def tasks(self, name):
        """The jobs with this name: tasks of an array by their number, another job as 0. Without tasks that have not begun."""
        found = [job for job in self.cluster.jobs() if job["JobName"] == f"dipaco-{name}"]
        return {int(job.get("ArrayTaskId", "0")): job for job in found if job.get("ArrayTaskId", "0").isdigit()}

    def until(self, what, done, seconds=CHAIN):
        """Waits until `done` holds. A job that has failed would let it wait for ever."""
        def held():
            failed = [job["JobName"] for job in self.cluster.jobs() if job["JobState"] == "FAILED"]
            if failed:
                sys.exit(f"{what}: failed before: {', '.join(failed)}")
            return done()

        self.cluster.wait(what, seconds, held)
        self.say(what)

    def launch(self):
        """Writes the files, tests them, and submits them by the printed lines."""
        words = ["launch", "slurm", "--run", self.run, "--config", CONFIG, *self.options, "--text", self.text]
        words += ["--workers", WORKERS, "--threads", 1, "--parts", PARTS]
        lines = run(self.dipaco, *words)
        print(lines)
        for file in sorted((self.run / "slurm").glob("*.sbatch")):
            tested = sh("sbatch", "--test-only", file, check=False)
            self.say(f"sbatch --test-only {file.name}: exit {tested.returncode}: {tested.stderr.strip()}")
            if tested.returncode != 0:
                sys.exit(1)
        sh("env", "-C", self.jobs_folder, "bash", "-ec", lines)
        self.say("submitted by the printed lines")

    def kill_task(self, name, number=2):
        """Kills the program of a running task with SIGKILL. The script of the task must ask for another turn."""
        found = []

        def program():
            job = self.tasks(name).get(number, {})
            if job.get("Restarts", "0") != "0" or job.get("JobState") == "COMPLETED":
                sys.exit(f"{name}: task {number} has ended before it was killed; give more --copies")
            found[:] = processes(self.dipaco, job["ArrayJobId"], number) if job.get("JobState") == "RUNNING" else []
            return found

        self.until(f"{name}: task {number} runs", program)
        for process in found:
            os.kill(process, signal.SIGKILL)
        self.until(f"{name}: task {number} is killed, and requeued by its script", lambda: self.tasks(name)[number]["Restarts"] == "1", 60)
        # Slurm holds a requeued job back for two minutes, which nothing here depends on.
        task = f"{self.tasks(name)[number]['ArrayJobId']}_{number}"
        self.until(f"{name}: task {number} waits", lambda: self.state(name, number) == "PENDING", 60)
        sh("scontrol", "update", f"JobId={task}", "StartTime=now")

    def state(self, name, number=0):
        return self.tasks(name).get(number, {}).get("JobState")

    def rounds(self):
        """Complete rounds of the run."""
        shown = sh(self.dipaco, "status", "--run", self.run, check=False).stdout
        found = re.search(r"paths: ([\d.]+) of", shown)
        return float(found[1]) if found else 0.0

    def incomplete(self, what):
        if sh(self.dipaco, "--quiet", "status", "--complete", "--run", self.run, check=False).returncode == 0:
            sys.exit(f"{what}: the run was complete before; give more --rounds")
        self.say(f"{what}: round {self.rounds():.1f} of {self.given.rounds}")

    def addresses(self):
        """The addresses of the coordinator's log, one for each time that it began to lead."""
        log = next(self.jobs_folder.glob("dipaco-coordinator-*.log"), None)
        return re.findall(r"listening for workers.*address=\S*:(\d+)", log.read_text(errors="replace")) if log else []

    def disturb(self):
        """Preempts, moves and limits the training."""
        self.until("the training has begun", lambda: self.rounds() >= 1)
        workers = next(iter(self.tasks("worker").values()))["ArrayJobId"]
        sh("scontrol", "update", f"JobId={workers}", f"TimeLimit={LIMIT}")
        self.preempt()
        self.move()
        self.until("every worker has been requeued at its time limit",
                   lambda: all(self.restarts(number) > (number in self.preempted) for number in range(WORKERS)))
        sh("scontrol", "update", f"JobId={workers}", "TimeLimit=UNLIMITED")
        self.until("every worker runs again", lambda: all(self.state("worker", number) == "RUNNING" for number in range(WORKERS)))
        self.incomplete("after the time limit")

    def restarts(self, number):
        return int(self.tasks("worker")[number]["Restarts"])

    def preempt(self):
        self.preempted = [number for number, job in self.tasks("worker").items() if job["NodeList"] == "n2"]
        if not self.preempted:
            sys.exit("no worker is on n2")
        self.say(f"a job of higher priority for n2, where the workers {self.preempted} run")
        sh("sbatch", "--job-name=dipaco-urgent", "--partition=prio", "--nodelist=n2", "--exclusive", "--wrap=sleep 5", "--output=/dev/null")
        self.until("the job of higher priority has ended", lambda: self.state("urgent") == "COMPLETED", 300)
        self.until("the preempted workers run again",
                   lambda: all(self.state("worker", number) == "RUNNING" for number in self.preempted), 300)
        self.incomplete("after the preemption")

    def move(self):
        job = self.tasks("coordinator")[0]
        node, ports = job["NodeList"], self.addresses()
        self.say(f"the coordinator leads on {node}, port {ports[-1]}: drain {node}, requeue")
        sh("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=maintenance")
        sh("scontrol", "requeue", job["JobId"])
        self.until("the coordinator leads again", lambda: len(self.addresses()) > len(ports), 300)
        now = self.tasks("coordinator")[0]["NodeList"]
        self.say(f"the coordinator leads on {now}, port {self.addresses()[-1]}")
        if now == node or self.addresses()[-1] == ports[-1]:
            sys.exit("the coordinator has not moved to another node and port")
        sh("scontrol", "update", f"NodeName={node}", "State=RESUME")
        before = self.rounds()
        self.until("its workers have found it: a round later", lambda: self.rounds() >= before + 1, 600)
        self.incomplete("after the move")

    def finish(self):
        """Waits for all jobs and compares the result with a run without Slurm, which `plain` made."""
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY"}
        self.until("all jobs have ended", lambda: all(job["JobState"] in ended for job in self.cluster.jobs()))
        show(self.cluster.jobs())
        wrong = [job["JobId"] for job in self.cluster.jobs() if job["JobState"] != "COMPLETED"]
        if wrong:
            sys.exit(f"jobs that are not COMPLETED: {wrong}")
        events = (self.run / "metrics.jsonl").read_text().splitlines() if (self.run / "metrics.jsonl").exists() else []
        kinds = [json.loads(line).get("event") for line in events if line.startswith("{")]
        print({kind: kinds.count(kind) for kind in sorted(set(map(str, kinds)))})
        accounts = run(self.dipaco, "status", "--run", self.run, "--data")
        print(accounts)
        if "every inner step counts once" not in accounts:
            sys.exit("the accounts do not balance")

    def plain(self):
        """The same run without parts and without Slurm, and without a disturbance."""
        plain = self.folder / "plain"
        run(self.dipaco, "prepare", "--run", plain, "--config", CONFIG, *self.options, self.text)
        seed_and_route(self.dipaco, plain)
        ours, others = (files(folder) for folder in (self.run, plain))
        if ours != others:
            sys.exit(f"other bytes than without parts: {sorted(set(ours.items()) ^ set(others.items()))[:6]}")
        self.say(f"text and shards: {len(ours)} files with the same bytes as without parts")
        run(self.dipaco, "train", "--run", plain, "--workers", 2)
        if bits(self.dipaco, self.run) != bits(self.dipaco, plain):
            sys.exit("other weights than an undisturbed training")
        self.say("the same bits as an undisturbed training: weights, momentum, states, accounts")


def processes(program, array, number):
    """The processes of a task that run a program."""
    found, wanted = [], {f"SLURM_ARRAY_JOB_ID={array}".encode(), f"SLURM_ARRAY_TASK_ID={number}".encode()}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "exe") == str(program) and wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
        except OSError:
            # It has ended, or it is a thread of the kernel.
            continue
    return found


def text(folder, copies):
    """A text of files enough for the parts, each long enough to be killed in its middle."""
    folder.mkdir()
    pages = gzip.decompress((CORPUS / "pages.txt.gz").read_bytes()).decode().split("\n\n")
    for part in range(2 * PARTS):
        lines = (json.dumps({"text": f"{part} {copy}\n{page}"}) for copy in range(copies) for page in pages)
        (folder / f"{part}.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def files(folder):
    """Hashes of the text and of the shards."""
    found = [path for part in ("data", "routing") for path in (folder / part).rglob("*.h5")]
    found += [folder / "data/tokenizer.json", folder / "routing/router.bin", folder / "routing/train/shards.json"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def show(jobs):
    print(f"{'job':20} {'number':>8} {'state':10} {'requeued':>8}  node")
    for job in sorted(jobs, key=lambda job: int(job["JobId"])):
        number = f"{job['ArrayJobId']}_{job['ArrayTaskId']}" if "ArrayJobId" in job else job["JobId"]
        print(f"{job['JobName']:20} {number:>8} {job['JobState']:10} {job['Restarts']:>8}  {job['NodeList']}")


def datatrove(cluster, given, folder, like):
    """Plays deploy/datatrove/corpus.py on the same Slurm, and compares its shards with those of another run."""
    begun, before = time.monotonic(), {job["JobId"] for job in cluster.jobs()}
    words = [given.datatrove, ROOT / "deploy/datatrove/corpus.py", "--run", folder / "datatrove", "--tasks", PARTS, "--features"]
    words += ["--slurm", "spot", "--time", "00:30:00", "--cores", 1, like.text]
    config = folder / "datatrove.toml"
    config.write_text((like.run / "config.toml").read_text())
    environment = os.environ | {"DIPACO_CONFIG": str(config), "PATH": f"{given.datatrove.parent}:{os.environ['PATH']}"}
    done = subprocess.run([str(word) for word in words], env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"corpus.py: exit {done.returncode}\n{done.stderr}")
    new = lambda: [job for job in cluster.jobs() if job["JobId"] not in before]
    cluster.wait("end of datatrove's jobs", CHAIN, lambda: all(job["JobState"] not in ("PENDING", "RUNNING", "COMPLETING") for job in new()))
    show(new())
    if any(job["JobState"] != "COMPLETED" for job in new()):
        sys.exit("not all of datatrove's jobs are COMPLETED")
    if files(folder / "datatrove") != files(like.run):
        sys.exit("datatrove's jobs give other shards")
    print(f"{time.monotonic() - begun:6.0f} s  datatrove's jobs give the same text and shards")


def main():
    options = parser(__doc__)
    options.add_argument("--copies", type=int, default=40, help="copies of the pages in each file of text")
    options.add_argument("--rounds", type=int, default=400, help="rounds of the training; it must last longer than the disturbances")
    options.add_argument("--datatrove", type=lambda path: pathlib.Path(path).absolute(), metavar="PYTHON",
                         help="a Python with datatrove, to play deploy/datatrove/corpus.py too")
    given = options.parse_args()
    if reason := missing():
        print(f"skipped: {reason}", file=sys.stderr)
        return
    os.environ["PATH"] = f"{given.dipaco.parent}:{os.environ['PATH']}"
    # Not in /tmp, which each node has for itself.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/var/tmp") as folder:
        folder = pathlib.Path(folder)
        cluster = Cluster(folder / "cluster")
        try:
            play = Play(cluster, given, folder)
            play.launch()
            play.kill_task("prepare")
            play.kill_task("route")
            play.disturb()
            play.finish()
            if given.datatrove:
                datatrove(cluster, given, folder, play)
        finally:
            cluster.end()
        play.plain()


if __name__ == "__main__":
    main()
