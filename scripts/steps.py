"""Steps that scripts play and show: what runs, what it says, how it ends."""

import subprocess
import sys
import time


def step(name, *words, fails=False, **options):
    """Runs a command, shows what it says, and ends the script if it does not do what it should. Returns its output."""
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    words = [str(word) for word in words]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    for line in done.stdout.splitlines():
        print(f"  {line}")
    print(f"  exit {done.returncode}, {time.monotonic() - begun:.1f} s", flush=True)
    if (done.returncode != 0) != fails:
        sys.exit(f"{name}: {' '.join(words)}")
    return done.stdout
