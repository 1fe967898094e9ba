"""Loads a GGUF file in llama.cpp and prints greedy continuations of token ids, the ids of texts, and what llama.cpp took
from the file's keys as JSON.

Arguments: the file; JSON with `prompts` (lists of ids), `texts`, `tokens`, the length of a continuation, `context`, the
most tokens of a prompt and its continuation (without it 64), and `seconds`, the longest time of one (without it 60).
"""

import json
import sys
import urllib.request

import xllamacpp

file, task = sys.argv[1], json.loads(sys.argv[2])
params = xllamacpp.CommonParams()
params.model.path = file
params.n_ctx = task.get("context", 64)
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.warmup = False
params.verbosity = -1
params.port = 0
# Keys and values in f32, as dipaco has them.
params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)


def post(path, body):
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=task.get("seconds", 60)) as answer:
        return json.load(answer)


def properties():
    with urllib.request.urlopen(server.listening_address + "/props", timeout=60) as answer:
        found = json.load(answer)
    sampling = found["default_generation_settings"]["params"]
    return {"sampling": sampling, **{key: found[key] for key in ["bos_token", "eos_token", "chat_template"]}}


def complete(prompt):
    body = {"prompt": prompt, "n_predict": task["tokens"], "temperature": 0, "ignore_eos": False,
            "return_tokens": True, "cache_prompt": False}
    return post("/completion", body)["tokens"]


def ids(text):
    # Text is text: the name of a special token in it stands for its letters.
    return post("/tokenize", {"content": text, "add_special": False, "parse_special": False})["tokens"]


# The native part of the process prints to standard output too, so the last line counts.
print(json.dumps({
    "completions": [complete(prompt) for prompt in task["prompts"]],
    "texts": [ids(text) for text in task["texts"]],
    "properties": properties(),
}))
