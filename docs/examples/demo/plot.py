"""A program of its own, which shares nothing with the search but names: reads data and scores, draws a picture.

python plot.py PICTURE.png
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np
import work
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.svm import SVR

import cableway as cw

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (the backend is chosen first)


def main() -> None:
    """Draws mean R² over C and gamma, and the best candidate's predictions against the truth."""
    c = cw.get("demo/svr/C", readonly=True).numpy()
    gamma = cw.get("demo/svr/gamma", readonly=True).numpy()
    scores = cw.get("demo/svr/scores", readonly=True).numpy()  # (C, gamma, fold)
    x = cw.get("demo/svr/x", readonly=True).numpy()
    y = cw.get("demo/svr/y", readonly=True).numpy()

    mean = scores.mean(axis=2)
    best = np.unravel_index(mean.argmax(), mean.shape)

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    image = left.imshow(mean, origin="lower", aspect="auto", cmap="viridis", vmin=0.0)
    left.set_xticks(range(len(gamma)), [f"{value:.3g}" for value in gamma])
    left.set_yticks(range(len(c)), [f"{value:.3g}" for value in c])
    for i, j in np.ndindex(mean.shape):
        left.text(j, i, f"{mean[i, j]:.2f}", ha="center", va="center", fontsize=8,
                  color="black" if mean[i, j] > 0.3 else "white")  # fmt: skip
    left.scatter(best[1], best[0], s=600, facecolors="none", edgecolors="red", linewidths=2)
    left.set(
        xlabel="gamma",
        ylabel="C",
        title=f"SVR on diabetes ({len(x)} rows): mean R² of {scores.shape[2]} folds",
    )
    figure.colorbar(image, ax=left, label="mean R²")

    model = SVR(C=float(c[best[0]]), gamma=float(gamma[best[1]]))
    predicted = cross_val_predict(model, x, y, cv=KFold(work.SVR_FOLDS))
    right.scatter(y, predicted, s=10, alpha=0.6)
    right.plot(
        [y.min(), y.max()], [y.min(), y.max()], color="red", linewidth=1, label="prediction = truth"
    )
    right.set(xlabel="disease progression, measured", ylabel="predicted on held-out rows",
              title=f"Best: C = {model.C:.3g}, gamma = {model.gamma:.3g}, R² = {mean[best]:.3f}")  # fmt: skip
    right.legend()
    figure.savefig(sys.argv[1], dpi=110)


if __name__ == "__main__":
    main()
