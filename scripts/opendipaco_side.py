"""OpenDiPaCo's side of bench-opendipaco.py: a dense path and 4 × 4 paths, from reading the text to the last test number.

It follows opendipaco.validation.run_comparison step by step, with the same calls and arguments, so that each step has its
time. Two things differ: the text and the tokenizer are given, and the test text is cut document by document into windows
of 256 tokens with their bytes counted.
The environment names everything: PEER (the sources), TRAIN, TEST, SEED, ROUNDS, THREADS.
"""

import json
import math
import os
import resource
import sys
import time

# The tokenizer's trainer writes its progress to standard output. That one is kept for the result.
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
ROUNDS, SEED, THREADS = (int(os.environ[name]) for name in ("ROUNDS", "SEED", "THREADS"))
os.environ |= {"OMP_NUM_THREADS": str(THREADS), "RAYON_NUM_THREADS": str(THREADS), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, os.environ["PEER"] + "/src")

import torch
import torch.nn.functional as F
from opendipaco import BackboneConfig, DiLoCoConfig, DiPaCoConfig, DiPaCoEngine, LocalBackend, fit_discriminative_router
from opendipaco.data import ShardedCorpus, split_documents, train_tokenizer
from opendipaco.data.text import tokenize_documents
from opendipaco.inference import compose_path, config_path, route
from opendipaco.routing import KMeansRouter, ModelFeaturizer

torch.set_num_threads(THREADS)
VOCABULARY, SEQUENCE, WINDOW, BATCH, PREFIX, INNER = 4096, 128, 256, 16, 32, 20
ROUTER_SHARE = 0.15  # of the training documents; what run_comparison keeps for the router of the test
seconds = {}


def timed(name, since):
    seconds[name] = round(time.perf_counter() - since, 2)
    print(f"{name}: {seconds[name]} s", file=sys.stderr, flush=True)
    return time.perf_counter()


@torch.no_grad()
def bits_per_byte(windows, chosen, config, bank, token_bytes):
    """The arithmetic of opendipaco.inference.routed_perplexity, for windows of unequal length."""
    nll, size = 0.0, 0
    for path in chosen.unique().tolist():
        model = compose_path(config, bank, config_path(config, path)).eval()
        mine = sorted((window for window, p in zip(windows, chosen.tolist()) if p == path), key=lambda t: -t.numel())
        for at in range(0, len(mine), 8):
            rows = mine[at : at + 8]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)
            targets = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)[:, PREFIX:]
            logits = model(ids)[0][:, PREFIX - 1 : -1]
            nll += float(F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100, reduction="sum"))
            size += int(token_bytes[targets[targets != -100]].sum())
    return round(nll / math.log(2) / size, 4)


def texts(name):
    with open(os.environ[name]) as file:
        return [json.loads(line)["text"] for line in file]


begin = now = time.perf_counter()
torch.manual_seed(SEED)
train, test = texts("TRAIN"), texts("TEST")
tokenizer = train_tokenizer(train, vocab_size=VOCABULARY, model="bpe")
now = timed("tokenizer", now)
documents, _, _ = split_documents(tokenize_documents(train, tokenizer), seed=SEED)
# A character of a byte-level token is a byte. End of text and padding have none; an unknown one stands for a byte.
special = {"</s>": 0, "<pad>": 0, "<unk>": 1}
token_bytes = torch.tensor([special.get(t, len(t)) for t in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))])
windows = [doc[at : at + WINDOW] for doc in tokenize_documents(test, tokenizer) for at in range(0, doc.numel(), WINDOW)]
windows = [window for window in windows if window.numel() > PREFIX]
now = timed("tokenise", now)

backbone = BackboneConfig(vocab_size=len(tokenizer), hidden_size=128, num_attention_heads=4, intermediate_size=384,
                          layers_per_level=[2, 2], max_position_embeddings=WINDOW)
outer = DiLoCoConfig(inner_steps=INNER, inner_lr=2e-3, outer_lr=0.7, outer_momentum=0.9)
shape = lambda levels: DiPaCoConfig(backbone=backbone, level_sizes=levels, sequence_length=SEQUENCE, eval_sequence_length=WINDOW)
dense_shape, grid = shape([1, 1]), shape([4, 4])
reserved = max(1, int(len(documents) * ROUTER_SHARE))
router_documents, documents = documents[:reserved], documents[reserved:]
on_path_0 = torch.zeros(len(windows), dtype=torch.long)


def dense(outer):
    engine = DiPaCoEngine(dense_shape, outer, LocalBackend(dense_shape.build_topology()), seed=SEED, device="cpu")
    corpus = ShardedCorpus.from_assignments(documents, torch.zeros(len(documents), dtype=torch.long), 1, SEQUENCE)
    engine.total_rounds = ROUNDS
    engine.fit(corpus, num_rounds=ROUNDS, batch_size=BATCH, log_every=0)
    return engine.global_modules()


bank = dense(outer)
now = timed("train dense", now)
result = {"dense": bits_per_byte(windows, on_path_0, dense_shape, bank, token_bytes)}
now = timed("test dense", now)

engine = DiPaCoEngine(grid, outer, LocalBackend(grid.build_topology()), seed=SEED, device="cpu", materialize="eager")
bank = engine.global_modules()
features = ModelFeaturizer(bank, grid, device="cpu")
router = KMeansRouter(grid.num_paths, seed=SEED).fit(features([doc[:SEQUENCE] for doc in documents]))
corpus = ShardedCorpus.from_documents(documents, router, features, grid.num_paths, SEQUENCE)
now = timed("route", now)
engine.total_rounds = ROUNDS
engine.fit(corpus, num_rounds=ROUNDS, batch_size=BATCH, log_every=0)
now = timed("train 4 x 4", now)
router = fit_discriminative_router(router_documents, grid, bank, features, SEQUENCE)
now = timed("fit the test's router", now)
chosen = route([window[:PREFIX] for window in windows], router, features)
result["routed"] = bits_per_byte(windows, chosen, grid, bank, token_bytes)
now = timed("test 4 x 4", now)
result |= {"seconds": round(now - begin, 2), "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}

# After the clock: a path of plain AdamW, without an outer step.
bank = dense(DiLoCoConfig(inner_steps=INNER, inner_lr=2e-3, outer_lr=1.0, outer_momentum=0.0, outer_nesterov=False))
result["dense_adamw"] = bits_per_byte(windows, on_path_0, dense_shape, bank, token_bytes)
print(json.dumps(result | {"steps": seconds, "torch": torch.__version__}), file=answer, flush=True)
