#!/usr/bin/env python3
"""Checks dipaco's import, evaluation and export of a real model against transformers and llama.cpp.

    scripts/check-pretrained.py --text c4-validation.json.gz MODEL [MODEL]

MODEL is a folder in Hugging Face's format or a GGUF file of a Llama. Two models must be the same in both formats.
For SmolLM2-135M, `dipaco quickstart --from smollm2` leaves the GGUF file in runs/models.

1. All models give the same seed: every weight has the same bits.
2. The perplexity of the first documents is that of transformers on the exported folder, within 0.1 %. A sequence counts
   the tokens after the first 32, as `dipaco evaluate` does.
3. transformers (exported folder), `dipaco serve` with numbers in f32, llama.cpp (exported GGUF file) and llama.cpp (a given
   GGUF file) give the same greedy tokens, after short prompts and after one that fills the sequence.

Needs torch, transformers, h5py and xllamacpp, 6 GB of memory and 6 GB of disk.
"""

import gzip
import itertools
import json
import math
import pathlib
import sys
import tempfile

import runs
import serving

PREFIX = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
]
CONFIG = """
[run]
name = "pretrained"
[model]
context = {context}
[[topology.levels]]
modules = 1
blocks = "0..{blocks}"
embedding = true
head = true
[seed_model]
steps = 0
# `dipaco serve` needs a trained run. This step changes no weight.
[train]
rounds = 1
inner_steps = 1
batch = 1
sequence_tokens = 64
holdout_sequences = 0
adamw.learning_rate = 1e-30
schedule.warmup_steps = 0
"""


def blocks_of(model):
    """The number of blocks, which the topology must name."""
    if model.is_dir():
        return json.loads((model / "config.json").read_text())["num_hidden_layers"]
    # The key, its kind (an unsigned number of four bytes), and the number.
    head = model.read_bytes()[: 1 << 20]
    at = head.index(b"llama.block_count") + len(b"llama.block_count") + 4
    return int.from_bytes(head[at : at + 4], "little")


def first_documents(text, count, out):
    """Writes the first documents of JSON lines."""
    opened = gzip.open(text, "rt") if text.suffix == ".gz" else open(text)
    with opened as lines, open(out, "w") as file:
        file.writelines(itertools.islice(lines, count))


def sequences(run, length):
    """The sequences that `dipaco evaluate` counts."""
    import h5py

    documents = []
    for entry in json.loads((run / "data/validation.json").read_text())["files"]:
        with h5py.File(run / "data" / entry["file"]) as file:
            tokens, ends = file["tokens"][:], file["documents"][:]
        documents += [tokens[a:b].tolist() for a, b in itertools.pairwise(ends)]
    cut = [document[at : at + length] for document in documents for at in range(0, len(document), length)]
    return [sequence for sequence in cut if len(sequence) > PREFIX]


def of_transformers(folder, cut, tokens):
    """The perplexity of sequences, prompts with a long one of the sequences, and greedy continuations of the prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loss, counted = 0.0, 0
    with torch.no_grad():
        for sequence in cut:
            ids = torch.tensor([sequence])
            logs = torch.log_softmax(model(ids).logits[0, PREFIX - 1 : -1].double(), -1)
            loss -= logs.gather(1, ids[0, PREFIX:, None]).sum().item()
            counted += len(sequence) - PREFIX
        prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
        prompts.append(max(cut, key=len)[:-tokens])
        greedy = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            # With a mask, because a token that fills up may also be a token of the text.
            found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
            greedy.append(found[0, len(prompt) :].tolist())
    return math.exp(loss / counted), counted, prompts, greedy, tokenizer


def of_llama_cpp(file, prompts, tokens):
    """Greedy continuations by llama.cpp, by the script of the tests."""
    context = max(map(len, prompts)) + tokens
    task = json.dumps({"prompts": prompts, "texts": [], "tokens": tokens, "context": context, "seconds": 600})
    script = runs.ROOT / "tests/python/llama_cpp.py"
    return json.loads(runs.run(sys.executable, script, file, task).splitlines()[-1])["completions"]


def of_serve(dipaco, run, prompts, tokens):
    """Greedy continuations by `dipaco serve`."""
    for command in (["route", "fit"], ["route", "assign"], ["train", "--workers", 1]):
        runs.run(dipaco, *command, "--run", run)
    # Keys and values in f32, as transformers has them.
    with serving.Server(dipaco, run, *runs.settings({"serve.kv_type": "f32"})) as server:
        request = {"model": server.name, "max_tokens": tokens, "temperature": 0, "return_token_ids": True}
        answers = [server.post("/v1/completions", {"prompt": prompt, **request}) for prompt in prompts]
    return [answer["choices"][0]["token_ids"] for answer in answers]


def agreement(name, found, expected, end):
    """Prints how far greedy tokens agree; an end token need not be repeated."""
    equal = True
    for ours, theirs in zip(found, expected, strict=True):
        strip = lambda ids: ids[: ids.index(end)] if end in ids else ids
        equal &= strip(ours) == strip(theirs)
    print(f"{name}: {'the same tokens' if equal else f'OTHER TOKENS: {found} instead of {expected}'}")
    return equal


def main():
    options = runs.parser(__doc__)
    options.add_argument("models", type=pathlib.Path, nargs="+", metavar="MODEL")
    options.add_argument("--text", type=pathlib.Path, required=True, help="JSON lines with `text`, also .gz")
    options.add_argument("--documents", type=int, default=60)
    options.add_argument("--sequence-tokens", type=int, default=512)
    options.add_argument("--tokens", type=int, default=24, help="length of a greedy continuation")
    options = options.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text, config = folder / "text.jsonl", folder / "config.toml"
        first_documents(options.text, options.documents, text)
        context = max(2048, options.sequence_tokens)
        config.write_text(CONFIG.format(context=context, blocks=blocks_of(options.models[0])))
        hashes = []
        for index, model in enumerate(options.models):
            run = ["--run", folder / f"run-{index}"]
            runs.run(options.dipaco, "seed", *run, "--config", config, "--import", model)
            seed = json.loads(runs.run(options.dipaco, "status", *run, "--json"))["seed"]["weights"]
            hashes.append(seed["hash"])
            print(f"{model.name}: {seed['bytes']} bytes of weights, hash {seed['hash'][:16]}")
        good &= len(set(hashes)) == 1
        run = ["--run", folder / "run-0"]
        # `prepare` trains on no file of the validation text, and the seed takes no step here.
        train = folder / "train.jsonl"
        train.write_bytes(text.read_bytes())
        runs.run(options.dipaco, "prepare", *run, train, "--validation", text)
        runs.run(options.dipaco, "seed", *run)
        length = ["--set", f"evaluation.sequence_tokens={options.sequence_tokens}"]
        (ours,) = json.loads(runs.run(options.dipaco, "evaluate", *run, "--seed", "--json", *length))
        out, gguf = folder / "exported", folder / "exported.gguf"
        runs.run(options.dipaco, "export", *run, "--seed", "--out", out, "--gguf", gguf)
        cut = sequences(folder / "run-0", options.sequence_tokens)
        theirs, counted, prompts, greedy, tokenizer = of_transformers(out, cut, options.tokens)
        apart = abs(ours["perplexity"] / theirs - 1)
        print(f"perplexity of {ours['documents']} documents, {ours['tokens_counted']} tokens: "
              f"dipaco {ours['perplexity']:.4f}, transformers {theirs:.4f}, {apart:.5%} apart")
        good &= apart < 1e-3 and counted == ours["tokens_counted"]
        for prompt, ids in zip(prompts, greedy, strict=True):
            print(f"  {len(prompt)} tokens, ...{tokenizer.decode(prompt[-12:])!r} -> {tokenizer.decode(ids)!r}")
        end = tokenizer.eos_token_id
        good &= agreement("dipaco serve", of_serve(options.dipaco, folder / "run-0", prompts, options.tokens), greedy, end)
        good &= agreement("llama.cpp, exported GGUF file", of_llama_cpp(gguf, prompts, options.tokens), greedy, end)
        for model in options.models:
            if model.is_file():
                found = of_llama_cpp(model, prompts, options.tokens)
                agreement(f"llama.cpp, {model.name}", found, greedy, end)
    sys.exit(0 if good else "a check failed")


if __name__ == "__main__":
    main()
