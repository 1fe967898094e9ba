#!/usr/bin/env python3
"""Prepares and routes a corpus as steps of datatrove's executors: on this machine, as jobs of Slurm, or on Ray.

    pip install datatrove                # with Ray: datatrove ray
    deploy/datatrove/corpus.py --run runs/mine --tasks 8 text/
    deploy/datatrove/corpus.py --run runs/mine --tasks 64 --slurm cpu --time 12:00:00 text/
    RAY_ADDRESS=head:6379 deploy/datatrove/corpus.py --run runs/mine --tasks 64 --ray text/

Each task runs one part of a dipaco command, which checks its own result: repeat the command to continue after a failure.
`dipaco` must be in PATH, on all machines of a cluster. DIPACO_CONFIG names the configuration file of a new run. With --slurm
the jobs get the caller's environment, so call it with the Python environment active. Without RAY_ADDRESS, --ray starts Ray here.
"""
import argparse
import pathlib
import shutil
import sys

from datatrove.executor import LocalPipelineExecutor, RayPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep


class DipacoStep(PipelineStep):
    """A command of dipaco. With several tasks each runs the part of its rank."""

    name = "dipaco"
    type = "COMMAND"

    def __init__(self, *words):
        super().__init__()
        self.words = words

    def run(self, data, rank=0, world_size=1):
        # Here, because a job of Slurm gets this class without the imports of its file.
        import subprocess
        part = ["--part", f"{rank + 1}/{world_size}"] if world_size > 1 else []
        subprocess.run(["dipaco", "-q", *self.words, *part], check=True)
        return data


def steps(run, texts, tasks, features):
    """The steps from text to shards: a name, a number of tasks and a command for each."""
    here = ["--run", run]
    divided = [("features", tasks, ["route", "features", *here])] if features else []
    return [
        ("tokenizer", 1, ["prepare", "--tokenizer-only", *here, *texts]),
        ("prepare", tasks, ["prepare", *here, *texts]),
        ("text", 1, ["prepare", *here, *texts]),
        ("seed", 1, ["seed", *here]),
        *divided,
        ("fit", 1, ["route", "fit", *here]),
        ("assign", tasks, ["route", "assign", *here]),
        ("shards", 1, ["route", "assign", *here]),
    ]


def local(given):
    """Makes executors of this machine. All tasks of a step run at a time."""
    def make(step, tasks, name, after, **common):
        return LocalPipelineExecutor([step], tasks=tasks, depends=after, **common)
    return make


def slurm(given):
    """Makes executors of Slurm: an array for each step, after the array before."""
    def make(step, tasks, name, after, **common):
        return SlurmPipelineExecutor([step], tasks=tasks, time=given.time, partition=given.slurm, cpus_per_task=given.cores,
                                     job_name=f"dipaco-{name}", depends=after, qos=None, requeue=True, **common)
    return make


def ray(given):
    """Makes executors of Ray, which runs the tasks of a step wherever there are cores. It repeats tasks of lost machines."""
    from ray import init
    init()

    def make(step, tasks, name, after, **common):
        # A step does not wait for the one before: `run` returns at its end.
        return RayPipelineExecutor([step], tasks=tasks, cpus_per_task=given.cores, mem_per_cpu_gb=given.memory, **common)
    return make


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", required=True, help="directory of the run, which all machines reach")
    options.add_argument("--tasks", type=int, default=8, help="parts of prepare and of route assign")
    options.add_argument("--features", action="store_true", help='also divide `route features`, for routing.features = "seed"')
    where = options.add_mutually_exclusive_group()
    where.add_argument("--slurm", metavar="PARTITION", help="run as jobs of Slurm")
    where.add_argument("--ray", action="store_true", help="run on Ray")
    options.add_argument("--time", default="12:00:00", help="time limit of a job of Slurm")
    options.add_argument("--cores", type=int, default=8, help="cores of a task, on Slurm and Ray")
    options.add_argument("--memory", type=float, default=2, help="GB for each core of a task, on Ray")
    options.add_argument("text", nargs="+", help="files and folders")
    given = options.parse_args()
    run = str(pathlib.Path(given.run).absolute())
    texts = [str(pathlib.Path(text).absolute()) for text in given.text]
    make = slurm(given) if given.slurm else ray(given) if given.ray else local(given)
    executor = None
    for name, tasks, words in steps(run, texts, given.tasks, given.features):
        logs = f"{run}/datatrove/{name}"
        # datatrove would skip what it has run before, also when the text has changed. dipaco skips what is done.
        shutil.rmtree(f"{logs}/completions", ignore_errors=True)
        executor = make(DipacoStep(*words), tasks, name, executor, logging_dir=logs, skip_completed=False)
        executor.run()
        # Slurm runs its jobs later. Ray's executor goes on after a failure.
        failed = [] if given.slurm else executor.get_incomplete_ranks(skip_completed=True)
        if failed:
            sys.exit(f"{name}: {len(failed)} of {tasks} tasks failed; their logs are in {logs}/logs")


if __name__ == "__main__":
    main()
