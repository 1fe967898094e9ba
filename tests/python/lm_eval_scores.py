"""Runs the tasks of a folder in lm-evaluation-harness, and prints the metrics and the scores of every sample as JSON.

Arguments: the folder, the kind of the model (`local-completions` for a server, `hf` for an exported path in process), and
its settings as JSON.
"""

import json
import os
import sys
import tempfile

tasks, kind, settings = sys.argv[1:]
# The copies of the tasks' data that the package `datasets` makes.
cache = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = cache.name
# The tasks name their data relative to their own folder.
os.chdir(tasks)

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

found = simple_evaluate(
    model=kind, model_args=json.loads(settings), tasks=["choice", "text"], bootstrap_iters=0, log_samples=True,
    task_manager=TaskManager(include_path=".", include_defaults=False),
)
samples = {task: sorted(list_, key=lambda sample: sample["doc_id"]) for task, list_ in found["samples"].items()}
print(json.dumps({
    "metrics": found["results"],
    "samples": {task: [sample["resps"] for sample in list_] for task, list_ in samples.items()},
}))
