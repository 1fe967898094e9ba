#!/usr/bin/env python3
"""Compares k-means with faiss and scikit-learn: the same points, the same first centroids, as many iterations, in turn.

    scripts/bench-kmeans.py --python VENV/bin/python                1,000,000 × 256, k = 16 and 256, 3 rounds
    scripts/bench-kmeans.py --points 200000 --clusters 16 --rounds 5

Points are drawn from 1,000 overlapping normal clouds far from the origin, and written to --folder with the first
centroids (points drawn evenly). Each process reads them, is timed from there to the last centroids, and each round runs
all of them, so that a slow minute of the machine touches all sides; the median of the rounds counts, and the best round stands beside it.
Inertia is that of
the last centroids, computed in the same way for all. What every process printed goes to standard error, the Markdown
table to standard output.

faiss is made to use all points, as it samples 256 per cluster otherwise. The interpreter of --python needs numpy,
faiss-cpu and scikit-learn.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from runs import ROOT, parser

MAKE = """
import numpy as np, sys
path, n, d = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random = np.random.default_rng(7)
clouds = random.standard_normal((1000, d), dtype=np.float32) + 3
points = np.memmap(path, np.float32, "w+", shape=(n, d))
for start in range(0, n, 65536):
    size = min(65536, n - start)
    points[start:start + size] = clouds[random.integers(0, 1000, size)] + random.standard_normal((size, d), dtype=np.float32)
points.flush()
"""
FIRST = """
import numpy as np, sys
path, first, n, d, k = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
points = np.memmap(path, np.float32, "r", shape=(n, d))
points[np.sort(np.random.default_rng(k).choice(n, k, replace=False))].tofile(first)
"""
LOAD = """
import json, sys, time, numpy as np
path, first, d, iterations = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
x = np.fromfile(path, np.float32).reshape(-1, d); c = np.fromfile(first, np.float32).reshape(-1, d)
"""
INERTIA = """
total = 0.0
for start in range(0, len(x), 65536):
    block = x[start:start + 65536].astype(np.float64); m = centroids.astype(np.float64)
    total += np.maximum((block * block).sum(1) + ((m * m).sum(1) - 2 * block @ m.T).min(1), 0).sum()
print(json.dumps(dict(seconds=seconds, inertia=total, iterations=iterations)))
"""
FAISS = LOAD + """
import faiss
k = faiss.Kmeans(d, len(c), niter=iterations, nredo=1, max_points_per_centroid=len(x), min_points_per_centroid=1, seed=1)
start = time.perf_counter(); k.train(x, init_centroids=c); seconds = time.perf_counter() - start
centroids = k.centroids
""" + INERTIA
SKLEARN = LOAD + """
import warnings; from sklearn.cluster import KMeans
warnings.simplefilter("ignore")
k = KMeans(len(c), init=c, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd", copy_x=False)
start = time.perf_counter(); k.fit(x); seconds = time.perf_counter() - start
centroids, iterations = k.cluster_centers_, k.n_iter_
x = np.fromfile(path, np.float32).reshape(-1, d)
""" + INERTIA


def binary():
    """The benchmark, built with optimisation."""
    command = ["cargo", "bench", "-p", "dipaco-routing", "--bench", "kmeans", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    built = [message.get("executable") for message in map(json.loads, lines) if message.get("reason") == "compiler-artifact"]
    return [path for path in built if path][-1]


def main():
    p = parser(__doc__, dipaco=None)
    p.add_argument("--points", type=int, default=1_000_000)
    p.add_argument("--dimension", type=int, default=256)
    p.add_argument("--clusters", type=lambda text: [int(k) for k in text.split(",")], default=[16, 256])
    p.add_argument("--iterations", type=int, default=20)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--python", default=sys.executable, help="the Python that has faiss and scikit-learn")
    p.add_argument("--binary", help="the benchmark, if it is built already")
    p.add_argument("--folder", type=pathlib.Path, help="where the points lie; they are made when they do not")
    p.add_argument("--without", type=lambda text: text.split(","), default=[], help="sides to leave out")
    a = p.parse_args()
    program = a.binary or binary()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or pathlib.Path(temporary)
        points = folder / f"points-{a.points}x{a.dimension}.f32"
        if not points.exists() or points.stat().st_size != 4 * a.points * a.dimension:
            run([a.python, "-c", MAKE, points, a.points, a.dimension])
        print("| k | | seconds, median | best | inertia | median / dipaco's |\n|---|---|---|---|---|---|")
        for k in a.clusters:
            first = folder / f"first-{a.points}x{a.dimension}-{k}.f32"
            run([a.python, "-c", FIRST, points, first, a.points, a.dimension, k])
            compare(a, k, program, [points, first, a.dimension, a.iterations])


def compare(a, k, program, arguments):
    sides = {"dipaco": [program], "faiss": [a.python, "-c", FAISS], "scikit-learn": [a.python, "-c", SKLEARN]}
    results = {name: [] for name in sides if name not in a.without}
    for index in range(a.rounds):
        for name in results:
            results[name].append(json.loads(run(sides[name] + arguments)))
            print(json.dumps({"k": k, "round": index, "side": name, **results[name][-1]}), file=sys.stderr, flush=True)
    median = {name: statistics.median(r["seconds"] for r in rounds) for name, rounds in results.items()}
    for name, rounds in results.items():
        inertia = rounds[-1]["inertia"]
        best, ratio = min(r["seconds"] for r in rounds), median[name] / median["dipaco"]
        print(f"| {k} | {name} | {median[name]:.2f} | {best:.2f} | {inertia:.8g} | {ratio:.2f} |", flush=True)


def run(command):
    threads = str(len(os.sched_getaffinity(0)))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
    command = [str(word) for word in command]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


if __name__ == "__main__":
    main()
