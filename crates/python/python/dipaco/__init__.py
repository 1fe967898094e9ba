"""Reads runs of dipaco: routes, scores and continues texts, and shows tokens and metrics.

    run = dipaco.Run("runs/mine")
    run.generate(["Once upon a time"])

`__init__.pyi` has the types and the documentation. Training is the work of the program `dipaco`.
"""
from ._dipaco import Generation, Route, Run, RunError, Score, TokenSet, __version__

__all__ = ["Generation", "Route", "Run", "RunError", "Score", "TokenSet", "__version__"]
