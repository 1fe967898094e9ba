"""The commit that stands in a program."""
import os
import subprocess


def commit_of_sources(root):
    """DIPACO_COMMIT, or the hash of the last commit, with -dirty if a file of it was changed. Empty for sources without git."""
    given = os.environ.get("DIPACO_COMMIT")
    if given is None:
        words = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        described = subprocess.run(words, cwd=root, capture_output=True, text=True)
        given = described.stdout.strip() if described.returncode == 0 else ""
    return given
