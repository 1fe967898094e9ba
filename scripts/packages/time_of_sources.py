"""The time that stands in packages."""
import os
import subprocess

# Zip archives have no earlier one.
FIRST_OF_1980 = 315532800


def time_of_sources(root):
    """SOURCE_DATE_EPOCH, or the time of the last commit, or 1980 for sources without git. In seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if not given:
        log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True)
        given = log.stdout.strip() if log.returncode == 0 else ""
    return max(int(given or 0), FIRST_OF_1980)
