"""Loads a checkpoint in transformers and prints the logits of token ids and the ids of a text as JSON.

Arguments: the checkpoint's folder, token ids as JSON, a text.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, tokens, text = sys.argv[1:]
torch.set_num_threads(1)
model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model.eval()(torch.tensor([json.loads(tokens)])).logits[0]
ids = tokenizer(text)["input_ids"]
print(json.dumps({
    "class": type(model).__name__,
    "missing": sorted(loading["missing_keys"]),
    "unexpected": sorted(loading["unexpected_keys"]),
    "logits": logits.tolist(),
    "ids": ids,
    "text": tokenizer.decode(ids),
    "eos": tokenizer.eos_token_id,
}))
