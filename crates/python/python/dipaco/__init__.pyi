"""Reads runs of dipaco: routes, scores and continues texts, and shows tokens and metrics."""

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Optional, Union, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Generation", "Route", "Run", "RunError", "Score", "TokenSet", "__version__"]

__version__: str

Prompt = Union[str, Iterable[int]]
"""A text, or the ids of its tokens."""

class RunError(Exception):
    """A run can't be read or used. The text says what, where and what to do, as the program's errors do."""

@final
class Route:
    """The path that the router chooses for a text."""

    @property
    def path(self) -> int:
        """The path."""
    @property
    def distances(self) -> list[float]:
        """Distance of the text to each path, lower is nearer. Empty for a router without distances."""
    @property
    def prefix_tokens(self) -> int:
        """Number of tokens of the text that the router read."""

@final
class Score:
    """The log-probabilities of a text's tokens."""

    @property
    def path(self) -> int:
        """The path that scored the text, or with `serve.route_every` its first tokens."""
    @property
    def tokens(self) -> list[int]:
        """The tokens of the text."""
    @property
    def log_probs(self) -> list[Optional[float]]:
        """The log-probability of each token after all tokens before it, in nats. Nothing predicts the first: it has None."""

@final
class Generation:
    """A continuation of a prompt."""

    @property
    def path(self) -> int:
        """The path that the continuation began on."""
    @property
    def text(self) -> str:
        """The text, without the prompt, the end of the text and the stop text."""
    @property
    def tokens(self) -> list[int]:
        """The generated tokens, with those of the end."""
    @property
    def log_probs(self) -> list[Optional[float]]:
        """The log-probability of each generated token before temperature and penalties, in nats."""
    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """stop: the text ended, or a stop text came. length: max_tokens were generated."""

@final
class TokenSet:
    """Documents as token ids: the text of `dipaco prepare`, or the shard of a path, in one token file or in several.

    The arrays are views of the files. They can't be written, and nothing is copied or read before its use.
    The object is a data set for torch.utils.data.DataLoader: it has a length and items, and goes to other processes by
    its path.
    """

    def __new__(cls, path: Union[str, PathLike[str]]) -> TokenSet:
        """Opens a list of token files or a token file, and checks their structure, not their tokens."""
    @property
    def path(self) -> Path:
        """The list of the files, or the only file."""
    @property
    def files(self) -> list[TokenSet]:
        """The token files in their order, each as a set of its own."""
    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
    @property
    def end_of_text(self) -> int:
        """The last token of every document."""
    @property
    def content_hash(self) -> str:
        """The hash of the content, as its writer recorded it."""
    @property
    def tokens(self) -> NDArray[Union[np.uint16, np.uint32]]:
        """All tokens, document after document. A set of several files raises ValueError: take the arrays of `files`."""
    @property
    def offsets(self) -> NDArray[np.uint64]:
        """Places of the documents in `tokens`, and the end of the last document. Only of a set of one file, as `tokens`."""
    def verify(self) -> None:
        """Reads all files, and checks their hashes and that all tokens are in the vocabulary."""
    def __len__(self) -> int:
        """Number of documents."""
    def __getitem__(self, document: int, /) -> NDArray[Union[np.uint16, np.uint32]]:
        """The tokens of a document, with its end."""
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Run:
    """A run of dipaco, for reading. Nothing of it changes.

    `route`, `score` and `generate` use the engine of `dipaco serve` with the run's section [serve]. The first of these calls
    loads the weights, and later calls keep them. All other methods read the run as it is at the call.
    Methods run without the interpreter's lock, so threads work at the same time. Ctrl-C ends `route`, `score`,
    `generate` and `evaluate` early.
    """

    def __new__(cls, path: Union[str, PathLike[str]], *, early_stopping: bool = False) -> Run:
        """Opens the run in the folder `path`. With `early_stopping`, each path has the weights with the lowest loss on its
        held-out documents in place of the last."""
    @property
    def path(self) -> Path:
        """The folder of the run."""
    @property
    def name(self) -> str:
        """The name of the run."""
    @property
    def paths(self) -> int:
        """Number of paths."""
    @property
    def context(self) -> int:
        """Largest number of tokens of a sequence: of a text, or of a prompt and its continuation."""
    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without an end."""
    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""
    def route(self, texts: Sequence[Prompt]) -> list[Route]:
        """The path of each text by its first tokens."""
    def score(self, texts: Sequence[Prompt], *, path: Optional[int] = None) -> list[Score]:
        """The log-probabilities of the tokens of each text, by the path that the router chooses, or by `path`.

        A text may have `context` tokens at most."""
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 16,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[str] = ...,
        path: Optional[int] = None,
    ) -> list[Generation]:
        """Continues each prompt, on the path that the router chooses, or on `path`. The parameters are those of the server.

        Temperature 0 takes the likeliest token. The same seed gives the same text."""
    def evaluate(self, *, path: Optional[int] = None, seed: bool = False) -> dict[str, Any]:
        """Perplexity on the validation text, as `dipaco evaluate --json` has it: of the routed paths, of one path, or of the
        seed."""
    def tokens(self, path: Optional[int] = None, *, validation: bool = False) -> TokenSet:
        """The training or validation text as tokens: all of it, or the shard of a path in the current phase."""
    def metrics(self, event: Optional[str] = None) -> list[dict[str, Any]]:
        """The events of the run in their order, or those with one name. docs/metrics.md lists them."""
    def export(
        self,
        out: Union[str, PathLike[str]],
        *,
        path: Optional[int] = None,
        seed: bool = False,
        gguf: Optional[Literal["f32", "bf16", "q8_0", "q4_0"]] = None,
        force: bool = False,
    ) -> None:
        """Writes a path or the seed for other programs: a checkpoint in Hugging Face's format into the folder `out`, or with
        `gguf` the GGUF file `out` with matrices in this format. Only with `force` it replaces a GGUF file, a checkpoint in
        the folder, or a README.md."""
