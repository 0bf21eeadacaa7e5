"""The work that the demo does, the same in every arrangement: one task trains and scores one candidate on one fold.

Two grid searches with cross-validation:

- `svr`: support vector regression with an RBF kernel over the diabetes data of scikit-learn (442 rows, 10 features).
- `tiled`: linear support vector regression by stochastic gradient descent over the same rows repeated to 256 MiB. The
  repetition makes the scores meaningless (every held-out row also stands among the training rows): it is for time and
  memory alone. Training goes over blocks of rows in place, so a task reads all the rows and copies none.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.linear_model import SGDRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold
from sklearn.svm import SVR

Floats = NDArray[np.float64]

SVR_C = np.logspace(-1, 3, 9)
SVR_GAMMA = np.logspace(-2, 2, 9)
SVR_FOLDS = 5

TILED_BYTES = 256 << 20
TILED_ALPHA = np.logspace(-6, -3, 4)
TILED_EPSILON = np.array([0.1, 1.0, 10.0])
TILED_FOLDS = 3
BLOCK_ROWS = 1 << 16


class Task(NamedTuple):
    """One candidate on one fold."""

    search: str  # "svr" or "tiled"
    first: float  # C, or alpha
    second: float  # gamma, or epsilon
    fold: int


def tasks(search: str) -> list[Task]:
    """All tasks of a search, candidates in the order of the grid, folds innermost."""
    grid = (
        (SVR_C, SVR_GAMMA, SVR_FOLDS)
        if search == "svr"
        else (TILED_ALPHA, TILED_EPSILON, TILED_FOLDS)
    )
    first, second, folds = grid
    return [
        Task(search, float(a), float(b), fold)
        for a, b, fold in product(first, second, range(folds))
    ]


def shape(search: str) -> tuple[int, int, int]:
    """Shape of the scores of a search: first parameter, second parameter, folds."""
    if search == "svr":
        return len(SVR_C), len(SVR_GAMMA), SVR_FOLDS
    return len(TILED_ALPHA), len(TILED_EPSILON), TILED_FOLDS


def tiled_rows() -> int:
    """How many rows of 10 features fill 256 MiB, in whole repetitions of the 442."""
    rows, features = load_diabetes().data.shape
    return TILED_BYTES // (rows * features * 8) * rows


def fill(search: str, x: Floats, y: Floats) -> None:
    """Writes the rows of a search into x (rows, 10) and their targets into y (rows,)."""
    data = load_diabetes()
    repeats = len(x) // len(data.data)
    # The data set has columns of length 1; gradient descent wants columns of variance 1.
    scale = 1.0 if search == "svr" else np.sqrt(len(data.data))
    x.reshape(repeats, *data.data.shape)[:] = data.data * scale
    y.reshape(repeats, len(data.target))[:] = data.target


def rows(search: str) -> tuple[int, int]:
    """Shape of the training data of a search."""
    return load_diabetes().data.shape if search == "svr" else (tiled_rows(), 10)


def evaluate(task: Task, x: Floats, y: Floats) -> float:
    """R² of one candidate on one fold: trained on the other folds, scored on this one."""
    if task.search == "svr":
        train, held_out = list(KFold(SVR_FOLDS).split(x))[task.fold]
        model = SVR(C=task.first, gamma=task.second).fit(x[train], y[train])
        return float(model.score(x[held_out], y[held_out]))
    begin, end = (len(x) * k // TILED_FOLDS for k in (task.fold, task.fold + 1))
    model = SGDRegressor(
        "epsilon_insensitive", alpha=task.first, epsilon=task.second, shuffle=False
    )
    for start, stop in [*blocks(0, begin), *blocks(end, len(x))]:
        model.partial_fit(x[start:stop], y[start:stop])
    predicted = np.concatenate([model.predict(x[start:stop]) for start, stop in blocks(begin, end)])
    return float(r2_score(y[begin:end], predicted))


def blocks(begin: int, end: int) -> list[tuple[int, int]]:
    """Begin and end of the blocks of rows from begin to end."""
    return [(start, min(start + BLOCK_ROWS, end)) for start in range(begin, end, BLOCK_ROWS)]
