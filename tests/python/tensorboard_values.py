"""Reads event files with TensorBoard's own reader, which checks every checksum.

Argument: a folder of files. Prints JSON: folder -> tag -> list of [step, value].
"""
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

found = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    found[folder.name] = {tag: [[point.step, point.value] for point in reader.Scalars(tag)]
                          for tag in reader.Tags()["scalars"]}
print(json.dumps(found))
