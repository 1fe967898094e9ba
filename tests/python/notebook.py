"""Runs the cells of a notebook, as Jupyter does, and prints the number of cells with code as JSON.

Argument: the notebook. PYTHONPATH has the module, and the working folder the run.
"""

import contextlib
import io
import json
import sys

with open(sys.argv[1]) as file:
    cells = json.load(file)["cells"]
names, count = {}, 0
for cell in cells:
    if cell["cell_type"] != "code":
        continue
    assert cell["outputs"], cell["source"]
    assert all(output["output_type"] != "error" for output in cell["outputs"]), cell["outputs"]
    with contextlib.redirect_stdout(io.StringIO()):
        exec("".join(cell["source"]), names)
    count += 1
print(json.dumps(count))
