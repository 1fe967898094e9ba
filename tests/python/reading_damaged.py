"""Opens runs that are damaged or not finished. Prints the exception of each call as one JSON object.

Arguments: pairs of a method and a run. PYTHONPATH has the module.
"""

import json
import sys

import dipaco

CALLS = {
    "open": lambda run: None,
    "generate": lambda run: run.generate(["fn main() {"]),
    "tokens": lambda run: run.tokens(),
    "verify": lambda run: run.tokens().verify(),
    "shard": lambda run: run.tokens(0),
    "evaluate": lambda run: run.evaluate(),
    "metrics": lambda run: run.metrics(),
}
found = []
for name, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        result = CALLS[name](dipaco.Run(folder))
        found.append(["", len(result) if isinstance(result, list) else 0])
    except Exception as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
