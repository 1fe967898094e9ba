"""Scores the validation text of a run, with paths that change within a text, and prints tokens and scores as a list in JSON.

Argument: the run. PYTHONPATH has the module.
"""

import json
import sys

import dipaco

run = dipaco.Run(sys.argv[1])
texts = [document[:run.context].tolist() for document in run.tokens(validation=True)]
scores = zip(texts, run.score(texts), run.score(texts, path=2))
print(json.dumps([{"tokens": text, "e2e": routed.log_probs, "e2e/path-2": pinned.log_probs}
                  for text, routed, pinned in scores]))
