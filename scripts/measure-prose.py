#!/usr/bin/env python3
"""Measures how plain the prose of the pages and of the rustdoc is.

    scripts/measure-prose.py                 prints two tables
    scripts/measure-prose.py --check         the same, and exits with 1 when a target is missed

Sentences of README.md and docs/ARCHITECTURE.md: median and 90th percentile of their length in words.
Fenced code, tables and headings are left out. A list item begins a new sentence.
Inline code counts by its words, a link by its text.

Rustdoc of each package (lines with /// and //! in its src folder): how often it uses the words "what", "one", "that" and
"those", per 1,000 words. Fenced code is left out.

Needs nothing but Python 3. The result depends on the files alone.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/ARCHITECTURE.md"]
WORDS = ["what", "one", "that", "those"]
# The most words of the median sentence and of the 90th percentile.
MEDIAN, HIGH = 16, 30
# The most uses of "what" per 1,000 words of a package's rustdoc.
WHAT = 2.0

ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s+")
# A sentence ends with a full stop, a question mark or an exclamation mark. The next one begins with a capital, a digit, code,
# a bracket or a quotation mark.
END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[A-Z0-9`(\[\"*_])")
WORD = re.compile(r"[^\W_](?:[\w'’.,/:×-]*\w)?")
RUST_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")


def paragraphs(text):
    """Paragraphs and list items of a Markdown page, each in one line, as they follow each other."""
    found, current, fenced = [], [], False
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.S).splitlines():
        stripped = line.strip()
        fence = stripped.startswith(("```", "~~~"))
        skipped = fenced or fence or not stripped or stripped.startswith(("#", "|", "!["))
        if skipped or ITEM.match(line):
            found.append(" ".join(current))
            current = []
        if fence:
            fenced = not fenced
        if not skipped:
            current.append(ITEM.sub("", line, count=1).strip())
    found.append(" ".join(current))
    return [paragraph for paragraph in found if paragraph]


def sentences(text):
    """The sentences of a Markdown page."""
    for paragraph in paragraphs(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        yield from (sentence for sentence in END.split(plain) if WORD.search(sentence))


def percentile(values, share):
    """The nearest-rank percentile of sorted values."""
    return values[max(0, -(-len(values) * share // 100) - 1)]


def rustdoc(folder):
    """The rustdoc of the Rust files below a folder, without fenced code."""
    text = []
    for file in sorted(folder.rglob("*.rs")):
        fenced = False
        for line in file.read_text(encoding="utf-8").splitlines():
            doc = re.match(r"\s*//[/!](?!/)(.*)", line)
            if doc is None:
                fenced = False
            elif doc[1].strip().startswith("```"):
                fenced = not fenced
            elif not fenced:
                text.append(doc[1])
    return "\n".join(text)


def packages():
    """Name and src folder of each package."""
    folders = [*sorted((ROOT / "crates").iterdir()), ROOT / "routing", ROOT / "shards"]
    return sorted((folder.name, folder / "src") for folder in folders if (folder / "src").is_dir())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="print the N longest sentences of each page")
    options = parser.parse_args()
    missed = []

    print(f"{'page':<24}{'sentences':>10}{'median':>8}{'p90':>6}{'longest':>9}")
    for page in PAGES:
        found = sorted(sentences((ROOT / page).read_text(encoding="utf-8")), key=lambda text: len(WORD.findall(text)))
        lengths = [len(WORD.findall(sentence)) for sentence in found]
        median, high = percentile(lengths, 50), percentile(lengths, 90)
        print(f"{page:<24}{len(lengths):>10}{median:>8}{high:>6}{lengths[-1]:>9}")
        for sentence in reversed(found[len(found) - min(options.longest, len(found)):]):
            print(f"    {len(WORD.findall(sentence)):>3}  {sentence}")
        if median > MEDIAN or high > HIGH:
            missed.append(f"{page}: {median} / {high} words, the target is {MEDIAN} / {HIGH}")
    print()

    print(f"{'package':<12}{'words':>8}" + "".join(f"{word:>8}" for word in WORDS) + "   per 1,000 words")
    counts = [(name, [word.lower() for word in RUST_WORD.findall(rustdoc(folder))]) for name, folder in packages()]
    counts.append(("all", [word for _, words in counts for word in words]))
    for name, words in counts:
        rates = {word: 1000 * words.count(word) / max(1, len(words)) for word in WORDS}
        print(f"{name:<12}{len(words):>8}" + "".join(f"{rates[word]:>8.1f}" for word in WORDS))
        if name != "all" and rates["what"] > WHAT:
            missed.append(f"{name}: {rates['what']:.1f} times \"what\", the target is {WHAT:.0f}")

    if options.check and missed:
        print("\nmissed:\n  " + "\n  ".join(missed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
