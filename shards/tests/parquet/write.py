"""Writes the Parquet files of the tests of readers: `python write.py` with pyarrow 26 and datatrove 0.10.

Rows are in groups of three. `documents` are texts that a reader keeps; the other rows of a file have none.
"""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.writers import ParquetWriter

HERE = pathlib.Path(__file__).parent
TEXTS = ["document 0", None, "naïve 文書 🦀", " \n", "line one\nline two", "x" * 2000, "document 0", "last"]
LABELS = [{"source": "test", "score": number / 2} for number in range(len(TEXTS))]


def write(name, text=None, **settings):
    table = pa.table({"id": range(len(TEXTS)), "text": pa.array(TEXTS, text), "label": LABELS})
    pq.write_table(table, HERE / name, row_group_size=3, **settings)


# As the library datasets writes them: snappy, dictionaries, pages of version 1.
write("snappy.parquet", compression="snappy")
# Pages of version 2 with checksums, without dictionaries; strings with offsets of 64 bits.
write("zstd.parquet", pa.large_string(), compression="zstd", data_page_version="2.0", use_dictionary=False,
      write_page_checksum=True)
write("plain.parquet", compression="none", use_dictionary=False)

# Texts with addresses, for labels. A row has no address, and another no text.
rows = range(12)
pq.write_table(pa.table({
    "url": [None if row == 3 else f"https://example.com/{row}" for row in rows],
    "content": [None if row == 7 else f"Row {row} of a table, which speaks of {row * 31 % 17}." for row in rows],
}), HERE / "addresses.parquet", row_group_size=5)

with ParquetWriter(str(HERE), output_filename="datatrove-${rank}.parquet") as writer:
    for number, text in enumerate(TEXTS):
        if text:
            writer.write(Document(text=text, id=str(number), metadata={"url": "https://example.com"}))
