"""Reads a run with the module dipaco, as a notebook would, and prints what it found as one JSON object.

Arguments: the run, a folder for exports. PYTHONPATH has the module.
"""

import json
import os
import pickle
import sys

import h5py
import numpy as np

import dipaco

folder, out = sys.argv[1:]
TEXT = "fn main() {"
TEXTS = [TEXT, "Copyright", "[[package]]\nname = ", TEXT]
run = dipaco.Run(folder)
found = {"facts": [repr(run), str(run.path), run.name, run.paths, run.context, run.vocab_size, dipaco.__version__]}

ids = run.encode(TEXT)
found["decoded"] = run.decode(ids)
routes = run.route(TEXTS)
found["routes"] = [{"path": route.path, "distances": route.distances, "prefix_tokens": route.prefix_tokens}
                   for route in routes]
found["same_route_of_ids"] = run.route([np.array(ids, dtype=np.uint16)])[0].distances == routes[0].distances

greedy = run.generate([TEXT, ids], max_tokens=12, temperature=0)
found["greedy"] = [{"path": one.path, "text": one.text, "tokens": one.tokens, "log_probs": one.log_probs,
                    "finish_reason": one.finish_reason} for one in greedy]
drawn = [run.generate([TEXT] * 2, max_tokens=12, seed=seed) for seed in (7, 7, 8)]
found["drawn"] = [[one.text for one in texts] for texts in drawn]
stop = greedy[0].text[3:5]
found["stopped"] = [stop, run.generate([TEXT], max_tokens=12, temperature=0, stop=[stop])[0].text]
pinned = run.generate([TEXT], max_tokens=4, temperature=0, path=2)[0]
found["pinned"] = {"path": pinned.path, "text": pinned.text}

score = run.score([TEXT])[0]
found["score"] = {"path": score.path, "tokens": score.tokens, "log_probs": score.log_probs}

found["evaluated"] = {"routed": run.evaluate(), "seed": run.evaluate(seed=True), "path 1": run.evaluate(path=1)}
# The evaluation's protocol by hand: each document by its path, in sequences as long as the context, without their first tokens.
prefix, losses = found["evaluated"]["routed"]["prefix_tokens"], []
found["assigned"] = []
for path in range(run.paths):
    shard = run.tokens(path, validation=True)
    sequences = [document[start:start + run.context] for document in shard
                 for start in range(0, len(document), run.context)]
    sequences = [sequence for sequence in sequences if len(sequence) > prefix]
    for scored in run.score(sequences, path=path):
        losses += [-value for value in scored.log_probs[prefix:]]
    found["assigned"].append(sorted({route.path for route in run.route(list(shard))}))
found["by_hand"] = [sum(losses), len(losses)]

text = run.tokens()
(part,) = text.files
with h5py.File(part.path, "r") as file:
    same = np.array_equal(text.tokens, file["tokens"]) and np.array_equal(text.offsets, file["documents"])
copied = pickle.loads(pickle.dumps(text))
text.verify()
found["tokens"] = {
    "same_as_h5py": same,
    "dtype": str(text.tokens.dtype),
    "views": bool(np.shares_memory(text[0], text.tokens)),
    "part": part.path != text.path and np.array_equal(part.tokens, text.tokens) and part.content_hash != text.content_hash,
    "mapped": isinstance(text.tokens.base, np.memmap),
    "writeable": text.tokens.flags.writeable or text[0].flags.writeable,
    "documents": len(text),
    "last": [int(text[-1][-1]), int(text[len(text) - 1][-1]), text.end_of_text],
    "shards": sum(len(run.tokens(path)) for path in range(run.paths)),
    "pickled": bool(np.array_equal(copied[3], text[3])) and copied.path == text.path,
    "iterated": sum(len(document) for document in text) == len(text.tokens),
    "content_hash": text.content_hash,
}

events = run.metrics()
found["events"] = [event["event"] for event in events]
found["completed"] = run.metrics("path_completed") == [one for one in events if one["event"] == "path_completed"]

run.export(os.path.join(out, "path-1"), path=1)
run.export(os.path.join(out, "seed"), seed=True)
run.export(os.path.join(out, "path-1.gguf"), path=1, gguf="q8_0")

mine = os.path.join(out, "mine")
os.mkdir(mine)
with open(os.path.join(mine, "README.md"), "w") as file:
    file.write("mine")


def raised(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


found["raised"] = {
    "no run": raised(lambda: dipaco.Run(os.path.join(out, "nowhere"))),
    "no path": raised(lambda: run.generate([TEXT], path=99)),
    "no path to evaluate": raised(lambda: run.evaluate(path=4)),
    "no shard": raised(lambda: run.tokens(4)),
    "two models": raised(lambda: run.evaluate(path=1, seed=True)),
    "empty": raised(lambda: run.generate([TEXT, ""])),
    "long": raised(lambda: run.score(["word " * 100])),
    "token": raised(lambda: run.score([[1, 2, 99999]])),
    "temperature": raised(lambda: run.generate([TEXT], temperature=3.0)),
    "no list": raised(lambda: run.generate(TEXT)),
    "text as tokens": raised(lambda: run.decode(TEXT)),
    "bytes to score": raised(lambda: run.score([TEXT.encode()])),
    "bytes to continue": raised(lambda: run.generate([bytearray(TEXT.encode())])),
    "bytes to decode": raised(lambda: run.decode(TEXT.encode())),
    "view of bytes": raised(lambda: run.score([memoryview(TEXT.encode())])),
    "there already": raised(lambda: run.export(os.path.join(out, "seed"), seed=True)),
    "file of somebody": raised(lambda: run.export(mine, path=1)),
    "format": raised(lambda: run.export(os.path.join(out, "x"), path=1, gguf="f64")),
    "nothing to export": raised(lambda: run.export(os.path.join(out, "x"))),
    "document": raised(lambda: text[len(text)]),
    "document before the first": raised(lambda: text[-len(text) - 1]),
    "no token file": raised(lambda: dipaco.TokenSet(os.path.join(folder, "config.toml"))),
    "write": raised(lambda: text.tokens.__setitem__(0, 1)),
}
with open(os.path.join(mine, "README.md")) as file:
    found["kept"] = [os.listdir(mine), file.read()]
run.export(os.path.join(out, "seed"), seed=True, force=True)
found["lowest_error"] = [issubclass(dipaco.RunError, Exception), raised(lambda: list(text)) is None]

# A forked process has none of the threads. It learns that, and ends.
child = os.fork()
if child == 0:
    said = raised(lambda: run.route([TEXT]))
    fine = text[0][0] == copied[0][0]
    del run
    os._exit(0 if said and said[0] == "RunError" and "forked" in said[1] and fine else 1)
found["forked"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print(json.dumps(found))
