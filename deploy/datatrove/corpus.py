#!/usr/bin/env python3
"""Prepares and routes a corpus as steps of datatrove's executors: on this machine, or as jobs of Slurm.

    pip install datatrove
    deploy/datatrove/corpus.py --run runs/mine --tasks 8 text/
    deploy/datatrove/corpus.py --run runs/mine --tasks 64 --slurm cpu --time 12:00:00 text/

Each task runs one part of a dipaco command, which checks its own result: repeat the command to continue after a failure.
`dipaco` must be in PATH. DIPACO_CONFIG names the configuration file of a new run.
For other executors, such as Ray's, write a function like `local` below.
"""
import argparse
import pathlib
import subprocess

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep


class DipacoStep(PipelineStep):
    """A command of dipaco. With several tasks each runs the part of its rank."""

    name = "dipaco"
    type = "COMMAND"

    def __init__(self, *words):
        super().__init__()
        self.words = words

    def run(self, data, rank=0, world_size=1):
        part = ["--part", f"{rank + 1}/{world_size}"] if world_size > 1 else []
        subprocess.run(["dipaco", "-q", *self.words, *part], check=True)
        return data


def chain(executor, run, texts, tasks):
    """The executors from text to shards, each after the one before; returns the last. `executor` makes one from its step,
    its number of tasks, its name and the executor that it waits for."""
    here = ["--run", run]
    last = None
    for name, number, words in [
        ("tokenizer", 1, ["prepare", "--tokenizer-only", *here, *texts]),
        ("prepare", tasks, ["prepare", *here, *texts]),
        ("text", 1, ["prepare", *here, *texts]),
        ("seed", 1, ["seed", *here]),
        ("fit", 1, ["route", "fit", *here]),
        ("assign", tasks, ["route", "assign", *here]),
        ("shards", 1, ["route", "assign", *here]),
    ]:
        last = executor(DipacoStep(*words), number, name, last)
    return last


def local(run):
    """Makes executors of this machine. All tasks of a step run at a time."""
    def make(step, tasks, name, after):
        return LocalPipelineExecutor([step], tasks=tasks, depends=after, logging_dir=f"{run}/datatrove/{name}",
                                     skip_completed=False)
    return make


def slurm(run, partition, time, cores):
    """Makes executors of Slurm: an array for each step."""
    def make(step, tasks, name, after):
        return SlurmPipelineExecutor([step], tasks=tasks, time=time, partition=partition, cpus_per_task=cores,
                                     job_name=f"dipaco-{name}", depends=after, logging_dir=f"{run}/datatrove/{name}",
                                     skip_completed=False, qos=None, requeue=True)
    return make


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", required=True, help="directory of the run, which all machines reach")
    options.add_argument("--tasks", type=int, default=8, help="parts of prepare and of route assign")
    options.add_argument("--slurm", metavar="PARTITION", help="run as jobs of Slurm")
    options.add_argument("--time", default="12:00:00", help="time limit of a job")
    options.add_argument("--cores", type=int, default=8, help="cores of a job")
    options.add_argument("text", nargs="+", help="files and folders")
    given = options.parse_args()
    run = str(pathlib.Path(given.run).absolute())
    texts = [str(pathlib.Path(text).absolute()) for text in given.text]
    executor = slurm(run, given.slurm, given.time, given.cores) if given.slurm else local(run)
    chain(executor, run, texts, given.tasks).run()


if __name__ == "__main__":
    main()
