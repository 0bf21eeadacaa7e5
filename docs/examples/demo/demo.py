"""The main job: a grid search with cross-validation whose workers read the training data by name.

    python demo.py [--out FOLDER] [--workers N]

1. Puts the diabetes data of scikit-learn (442 patients, 10 measurements) under a name, searches
   C and gamma of a support vector regression with cableway.Pool, and compares every score with
   GridSearchCV of scikit-learn, number for number.
2. Puts the scores under a name too; another program (plot.py) reads data and scores by name and
   draws a picture.
3. Runs the same search, then a search over the same rows tiled to 256 MiB, in each arrangement,
   several rounds of them in turn, prints the medians of times and peak memory, and says what
   follows from them.
4. Where there are GPUs, searches another model on all of them (gpus.py).

Ends with status 1 if a score differs anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

# One thread for each process, in every arrangement: parallel is only what the arrangement makes so.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import gpus
import numpy as np
import work
from arrangements import ARRANGEMENTS, evaluate_named
from memory import Peak
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import SVR
from tqdm import tqdm

import cableway as cw

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
NOTES = """
seconds      from the first byte of data to the last score: making the data, starting workers, handing over
CPU s        processor time of the process and its workers
peak memory  the sum of PSS over the process and its workers, sampled ten times a second: shared pages count
             once; about 100 MiB are Python and scikit-learn
inherited    costs nothing either, but works only for data that were there before the workers were forked
"""


def search(workers: int) -> work.Floats:
    """The search itself, with cableway. Returns the scores, shaped (C, gamma, fold)."""
    data = load_diabetes()
    cw.put("demo/svr/x", data.data)
    cw.put("demo/svr/y", data.target)
    tasks = work.tasks("svr")
    with cw.Pool(workers) as pool:
        found = pool.imap(evaluate_named, tasks, chunksize=9)
        scores = list(tqdm(found, desc="cableway.Pool", total=len(tasks), unit="fit"))
    return np.array(scores).reshape(work.shape("svr"))


def reference() -> work.Floats:
    """The same scores by scikit-learn alone."""
    data = load_diabetes()
    grid = {"C": work.SVR_C, "gamma": work.SVR_GAMMA}
    found = (
        GridSearchCV(SVR(), grid, cv=KFold(work.SVR_FOLDS), refit=False)
        .fit(data.data, data.target)
        .cv_results_
    )
    by_fold = [
        found[f"split{fold}_test_score"].reshape(work.shape("svr")[:2])
        for fold in range(work.SVR_FOLDS)
    ]
    return np.stack(by_fold, axis=2)


def draw(picture: Path) -> None:
    """Lets another program draw the picture. It is told nothing but where to put it."""
    subprocess.run([sys.executable, HERE / "plot.py", picture], check=True)


class Result(NamedTuple):
    """What one arrangement took and gave."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    scores: list[float]


def measure(arrangement: str, name: str, workers: int) -> Result:
    """Runs one arrangement in a process of its own."""
    command = [sys.executable, HERE / "arrangements.py", arrangement, name, str(workers)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        Peak([process.pid]) as peak,
    ):
        output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"demo: {' '.join(map(str, command))} failed with status {process.returncode}")
    answer = json.loads(output.splitlines()[-1])
    return Result(answer["seconds"], answer["cpu"], peak.peak_bytes, answer["scores"])


ROUNDS, ROUNDS_SECONDS = 5, 18.0  # at most so many, and none is begun after so long


def measured(name: str, workers: int) -> dict[str, list[Result]]:
    """Rounds of all arrangements in turn, each round in the other order than the one before: what else the machine
    does falls on all of them."""
    results: dict[str, list[Result]] = {arrangement: [] for arrangement in ARRANGEMENTS}
    began = time.perf_counter()
    for number in range(ROUNDS):
        if number and time.perf_counter() - began > ROUNDS_SECONDS * number / (number + 1):
            break
        turn = list(ARRANGEMENTS)[:: -1 if number % 2 else 1]
        for arrangement in tqdm(turn, desc=f"{name}, round {number + 1}", unit="run", leave=False):
            results[arrangement].append(measure(arrangement, name, workers))
    return results


def compare(name: str, title: str, workers: int) -> tuple[bool, str]:
    """Measures every arrangement on one search and prints the table. Do all scores agree? And what follows."""
    rounds = measured(name, workers)
    results = {
        arrangement: Result(
            median(result.seconds for result in found),
            median(result.cpu_seconds for result in found),
            int(median(result.peak_bytes for result in found)),
            found[0].scores,
        )
        for arrangement, found in rounds.items()
    }
    print(f"\n{title}\n")
    count = len(rounds["serial"])
    print(f"  {f'medians of {count} rounds':44}{'seconds':>9}{'CPU s':>8}{'peak memory':>13}{'scores':>11}")
    expected = results["serial"].scores
    equal = {
        arrangement: all(result.scores == expected for result in found)
        for arrangement, found in rounds.items()
    }
    for arrangement, result in results.items():
        print(
            f"  {ARRANGEMENTS[arrangement][0]:44}{result.seconds:>9.2f}{result.cpu_seconds:>8.2f}"
            f"{result.peak_bytes / MIB:>9.0f} MiB{'equal' if equal[arrangement] else 'DIFFERENT':>11}"
        )
    return all(equal.values()), conclusion(name, results, rounds)


def conclusion(name: str, results: dict[str, Result], rounds: dict[str, list[Result]]) -> str:
    """One sentence that is true for what was measured. What differs by less than rounds do is called equal."""
    ours = results["named"]
    words = []
    for other in ("serial", "arguments", "copies", "inherited"):
        times = verdict(
            [mine.seconds / its.seconds for mine, its in zip(rounds["named"], rounds[other], strict=True)],
            "took {:.2f} of the time",
            "took as long",
        )
        memory = verdict(
            [mine.peak_bytes / its.peak_bytes for mine, its in zip(rounds["named"], rounds[other], strict=True)],
            "{:.2f} of the memory",
            "as much memory",
        )
        title = ARRANGEMENTS[other][0]
        words.append(f"{times} and {memory} of \"{title}\"")
    return f"{name}: cableway.Pool with data by name ({ours.seconds:.2f} s) " + ", ".join(words) + "."


def verdict(ratios: list[float], different: str, same: str) -> str:
    """A median of ratios within a round, where all rounds say the same of it; else that they do not."""
    middle = median(ratios)
    if all(ratio < 0.97 for ratio in ratios) or all(ratio > 1.03 for ratio in ratios):
        return different.format(middle)
    if all(0.9 < ratio < 1.1 for ratio in ratios):
        return same
    return f"{different.format(middle)} (rounds differ: {min(ratios):.2f} to {max(ratios):.2f})"


def main() -> int:
    """Runs everything and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the picture")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes of a Pool"
    )
    args = parser.parse_args()
    began = time.perf_counter()

    scores = search(args.workers)
    equal = np.array_equal(scores, reference())
    best = np.unravel_index(scores.mean(axis=2).argmax(), scores.shape[:2])
    verdict = "equal to" if equal else "DIFFERENT from"
    print(f"{scores.size} scores, {verdict} scikit-learn's GridSearchCV, number for number")
    c, gamma, mean = work.SVR_C[best[0]], work.SVR_GAMMA[best[1]], scores.mean(axis=2)[best]
    print(f"best: C = {c:.3g}, gamma = {gamma:.3g}, mean R² = {mean:.4f}")

    cw.put("demo/svr/scores", scores)
    cw.put("demo/svr/C", work.SVR_C)
    cw.put("demo/svr/gamma", work.SVR_GAMMA)
    args.out.mkdir(parents=True, exist_ok=True)
    picture = (args.out / "demo.png").resolve()
    draw(picture)
    print(f"picture, drawn by another program from the names alone: {picture}")

    fits, tiled_fits = len(work.tasks("svr")), len(work.tasks("tiled"))
    title = f"SVR over the diabetes data: 442 rows, {fits} fits, {args.workers} workers"
    same, small = compare("svr", title, args.workers)
    equal &= same
    title = (
        f"Linear SVR by gradient descent over the same rows TILED to 256 MiB: {work.tiled_rows()} rows,\n"
        f"{tiled_fits} fits, {args.workers} workers (for time and memory: the scores of repeated rows mean nothing)"
    )
    same, large = compare("tiled", title, args.workers)
    equal &= same
    print(NOTES)
    equal &= gpus.show()
    print("$ cableway ls", flush=True)
    command = (
        shutil.which("cableway", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        or "cableway"
    )
    subprocess.run([command, "ls"], check=True)
    for name in cw.names("demo/"):
        cw.remove(name)
    print(f"\nWhat was measured here says:\n\n{small}\n{large}")
    print(f"\ndemo: {time.perf_counter() - began:.0f} s in all")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
