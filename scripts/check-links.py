#!/usr/bin/env python3
"""Checks that each link of the pages leads somewhere.

    scripts/check-links.py        prints the broken links, and exits with 1 if there are any

Links of Markdown files to files and headings of this repository, and mentions of pages in configurations and Rust comments:
`docs/results/training-settings.md`, also with the heading in quotation marks after it ("Learning rates"). Addresses on the web
are not checked.

Needs Python 3 and git.
"""
import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A page of this repository, and the heading that a comment names after it.
MENTION = re.compile(r"(?<![\w/])(docs/[\w/.-]+\.md)`?(?:, \"([^\"]+)\")?")
# Where a comment goes on in the next line.
BREAK = re.compile(r"\s*\n\s*(?:#|//[/!]?)\s*")


def tracked(*patterns):
    """The repository's files of these patterns, those that git does not know yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def without_code(text):
    """A page without its fenced code."""
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.S | re.M)


@functools.cache
def headings(page):
    """The headings of a page as readers see them: links by their text, without marks."""
    found = re.findall(r"^#{1,6} (.*)$", without_code(page.read_text()), flags=re.M)
    return [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip() for heading in found]


def anchors(page):
    """The anchors that a page's headings get."""
    counts, found = {}, set()
    for heading in headings(page):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeated = counts.get(anchor, 0)
        counts[anchor] = repeated + 1
        found.add(f"{anchor}-{repeated}" if repeated else anchor)
    return found


def broken():
    """The broken links, each with the file that has it."""
    for page in tracked("*.md"):
        for link in LINK.findall(without_code(page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                yield page, f"{link}: there is no such file"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                yield page, f"{link}: the page has no such heading"
    for file in tracked("*.toml", "*.rs"):
        for path, heading in MENTION.findall(BREAK.sub(" ", file.read_text())):
            target = ROOT / path
            if not target.is_file():
                yield file, f"{path}: there is no such page"
            elif heading and heading not in headings(target):
                yield file, f"{path}, \"{heading}\": the page has no such heading"


def main():
    found = list(broken())
    for file, fault in found:
        print(f"{file.relative_to(ROOT)}: {fault}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
