"""Opens a token file with h5py and prints its content as JSON. Argument: the file."""

import json
import sys

import h5py


def plain(value):
    return value.decode() if isinstance(value, bytes) else value.item() if hasattr(value, "item") else value


with h5py.File(sys.argv[1], "r") as file:
    tokens, documents = file["tokens"], file["documents"]
    first, second = (int(offset) for offset in documents[:2])
    print(json.dumps({
        "names": sorted(file),
        "tokens": {"dtype": tokens.dtype.str, "count": tokens.shape[0], "last": int(tokens[-1])},
        "documents": {"dtype": documents.dtype.str, "count": documents.shape[0], "last": int(documents[-1])},
        "first": tokens[first:second].tolist(),
        "attributes": {name: plain(value) for name, value in file.attrs.items()},
    }))
