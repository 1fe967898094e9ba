"""A Slurm with two emulated nodes on one Debian machine, for scripts/slurm.py.

The nodes `n1` and `n2` have a network namespace each, with an address and ports of their own, their own name, and their own /tmp.
They share all other files, as the nodes of a cluster share a file system. Slurm believes in more cores and memory than there are.
Needs root, `ip`, `unshare`, and Debian's slurmctld, slurmd, slurm-client and munge.
"""

import os
import shutil
import signal
import subprocess
import sys
import time

from namespaces import Namespaces, sh

TOOLS = ["ip", "unshare", "munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel"]
# Address of the controller, on the bridge of the nodes.
CONTROLLER = "10.77.0.254"
# Longest time until the nodes are idle, and until the daemons have ended, in seconds.
BEGIN, END = 60, 20
CONF = """
ClusterName=emulated
SlurmctldHost={host}({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MinJobAge=86400
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=5,bf_interval=5
NodeName=n1 NodeAddr={n1} CPUs=4 RealMemory=64000 State=UNKNOWN
NodeName=n2 NodeAddr={n2} CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=spot Nodes=n[1-2] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=prio Nodes=n[1-2] PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing():
    """What this machine lacks, or None."""
    tools = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or tools:
        return "needs root" + "".join(f", {tool}" for tool in tools)
    return None


class Cluster:
    """The daemons. `folder` must not lie in /tmp, which each node has for itself."""

    def __init__(self, folder):
        self.folder, self.daemons, self.bridge = folder, [], None
        folder.mkdir()
        (folder / "state").mkdir()
        try:
            self.begin()
        except BaseException:
            self.end()
            raise

    def begin(self):
        self.bridge = Namespaces(2)
        sh("ip", "addr", "add", f"{CONTROLLER}/24", "dev", self.bridge.bridge)
        nodes = {"n1": self.bridge.address(0), "n2": self.bridge.address(1)}
        conf = self.folder / "slurm.conf"
        host = os.uname().nodename
        conf.write_text(CONF.format(host=host, controller=CONTROLLER, folder=self.folder, **nodes))
        os.environ["SLURM_CONF"] = str(conf)
        hosts = self.folder / "hosts"
        names = [("127.0.0.1", "localhost"), (CONTROLLER, host), *((address, name) for name, address in nodes.items())]
        hosts.write_text("".join(f"{address} {name}\n" for address, name in names))
        self.munge()
        self.daemon("slurmctld", "slurmctld", "-D")
        for at, name in enumerate(nodes):
            (self.folder / f"spool-{name}").mkdir()
            begin = f"hostname {name}; mount --make-rprivate /; mount --bind {hosts} /etc/hosts; mount -t tmpfs tmpfs /tmp; exec slurmd -D -N {name}"
            # Not `ip netns exec`, which hides the control groups of /sys.
            network = f"--net=/run/netns/{self.bridge.names[at]}"
            self.daemon(name, "nsenter", network, "unshare", "--mount", "--uts", "sh", "-ec", begin)
        self.wait("both nodes idle", BEGIN, lambda: sh("sinfo", "-hNo", "%n %t", "-p", "prio").stdout.split() == ["n1", "idle", "n2", "idle"])

    def munge(self):
        """The daemon that signs messages, with a key and a socket of its own."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"key-file": key, "socket": self.folder / "munge.socket", "pid-file": self.folder / "munged.pid",
                 "log-file": self.folder / "munged.log", "seed-file": self.folder / "munged.seed"}
        self.daemon("munged", "munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items()))
        self.wait("munge's socket", BEGIN, files["socket"].exists)

    def daemon(self, name, *words):
        out = open(self.folder / f"{name}.out", "ab")
        self.daemons.append((name, subprocess.Popen(words, stdout=out, stderr=out, cwd=self.folder, start_new_session=True)))

    def wait(self, what, seconds, done):
        """Waits until a condition holds; ends the script after so many seconds, or if a daemon has ended."""
        until = time.monotonic() + seconds
        while not done():
            for name, process in self.daemons:
                if process.poll() is not None:
                    sys.exit(f"{name} has ended:\n{(self.folder / f'{name}.out').read_text(errors='replace')}")
            if time.monotonic() > until:
                sys.exit(f"no {what} after {seconds} s:\n{sh('squeue', '-t', 'all', check=False).stdout}")
            time.sleep(0.1)

    def jobs(self):
        """All jobs that Slurm remembers, each as a dictionary: a task of an array is a job of its own once it has begun."""
        lines = sh("scontrol", "--oneliner", "show", "jobs").stdout.splitlines()
        pairs = [[word.partition("=") for word in line.split()] for line in lines if line.startswith("JobId=")]
        return [{key: value for key, _, value in line} for line in pairs]

    def end(self):
        """Ends all jobs and daemons."""
        if len(self.daemons) > 1:
            sh("scancel", "--me", check=False)
            until = time.monotonic() + END
            while time.monotonic() < until and sh("squeue", "-h", check=False).stdout:
                time.sleep(0.2)
        for _, process in reversed(self.daemons):
            process.send_signal(signal.SIGTERM)
        for name, process in self.daemons:
            try:
                process.wait(timeout=END)
            except subprocess.TimeoutExpired:
                print(f"{name} does not end", file=sys.stderr)
                process.kill()
                process.wait()
        if self.bridge:
            self.bridge.remove()
