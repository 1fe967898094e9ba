"""Writes one text with datatrove's writers, as users of datatrove have it.

Arguments: a file of text, gzipped; a folder. Writes `jsonl-gz`, `jsonl-zst` and `parquet` there, each with the files of two tasks.
Prints JSON: the number of documents and of bytes of text.
"""
import gzip
import json
import pathlib
import sys

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.writers import JsonlWriter, ParquetWriter



def documents(paragraphs):
    """A step that gives the paragraphs of a task, with quotes, line ends and letters that JSON must escape, and with metadata."""
    def step(data, rank=0, world_size=1):
        for at, paragraph in list(enumerate(paragraphs))[rank::world_size]:
            text = f'{paragraph}\n\t"\\ ü 漢 😀 \u2028 {at}'
            yield Document(text=text, id=f"page-{at}", metadata={"url": f"https://example.org/{at}", "score": at / 7})
    return step


def main():
    file, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    with gzip.open(file, "rt", encoding="utf-8") as text:
        step = documents([paragraph for paragraph in text.read().split("\n\n") if paragraph.strip()])
    for name, writer in [
        ("jsonl-gz", JsonlWriter(str(folder / "jsonl-gz"))),
        ("jsonl-zst", JsonlWriter(str(folder / "jsonl-zst"), output_filename="${rank}.jsonl.zst", compression="zstd")),
        ("parquet", ParquetWriter(str(folder / "parquet"), compression="zstd", batch_size=50)),
    ]:
        LocalPipelineExecutor([step, writer], tasks=2, logging_dir=str(folder / "logs" / name)).run()
    texts = [document.text for document in step(None)]
    print(json.dumps({"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}))


if __name__ == "__main__":
    main()
