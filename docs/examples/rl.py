"""Reinforcement learning with one trainer and two players: the trainer publishes versions of a policy, and each player swaps the newest
one in at the addresses where it reads its weights.

    python docs/examples/rl.py --steps 40

The task is a cart that has to come to rest at 0. The trainer uses evolution strategies (Salimans et al., arXiv:1703.03864): players
try weights that differ a little from the policy's, and the trainer moves the policy towards those that were better. Each player
reports which version it played with and what those weights add up to, so that the trainer can check that no player ever used a
mixture of two versions.

Everything lies in host memory here. `docs/examples/gpu/rl.py` does the same on a GPU, under captured graphs.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import numpy as np

import cableway as cw

PLAYERS = 2
TRIES = 32  # of all players, between two versions
NOISE = 0.1
RATE = 0.3
ENOUGH = 0.5  # the cost falls to at most this part of what it was


def cost(weights: np.ndarray, bias: float, start: np.ndarray) -> float:
    """What a policy costs: the cart's distance from 0 and its force, over 50 steps of 0.1 s; the lower the better."""
    (place, speed), total = start, 0.0
    for _ in range(50):
        force = float(np.clip(weights @ (place, speed) + bias, -2, 2))
        speed += 0.1 * force
        place += 0.1 * speed
        total += place**2 + 0.01 * force**2
    return total


def play(name: str, results: Any, go_on: Any, seed: int) -> None:
    """Plays with the newest version, on and on."""
    chosen = np.random.default_rng(seed)
    tree = cw.get(name, swappable=True)
    weights, bias, starts = (tree[leaf].numpy() for leaf in ("weights", "bias", "starts"))
    # The three arrays stay; what they show changes with swap().
    while go_on.is_set():
        tree.swap()
        noise = chosen.normal(size=3)
        start = starts[chosen.integers(len(starts))]
        tried = cost(weights + NOISE * noise[:2], float(bias[0]) + NOISE * noise[2], start)
        results.put((tree.version, float(weights.sum() + bias.sum()), noise, tried))


def train(steps: int) -> tuple[float, float]:
    """Trains a policy; returns what it cost at first and at last."""
    context = multiprocessing.get_context("spawn")
    results, go_on = cw.Queue(2 * PLAYERS), context.Event()
    policy, starts = (
        np.zeros(3),
        np.random.default_rng(0).uniform((0.5, -0.2), (1.5, 0.2), (256, 2)),
    )
    sums: dict[int, float] = {}  # of each version

    def publish() -> None:
        tree = cw.put("policy", {"weights": policy[:2], "bias": policy[2:], "starts": starts})
        sums[tree.version] = float(policy[:2].sum() + policy[2:].sum())

    def mean_cost() -> float:
        return float(np.mean([cost(policy[:2], policy[2], start) for start in starts[:50]]))

    publish()
    before = mean_cost()
    go_on.set()
    players = [
        context.Process(target=play, args=("policy", results, go_on, seed), daemon=True)
        for seed in range(PLAYERS)
    ]
    for player in players:
        player.start()
    try:
        for _ in range(steps):
            noises, costs = [], []
            for _ in range(TRIES):
                version, total, noise, tried = results.get(timeout=60)
                assert total == sums[version], "a player used a mixture of two versions"
                noises.append(noise)
                costs.append(tried)
            better = (np.mean(costs) - np.array(costs)) / (np.std(costs) + 1e-9)
            policy += RATE * NOISE * (better @ np.array(noises)) / TRIES * 10
            publish()
    finally:
        go_on.clear()
        for player in players:
            player.kill()
            player.join()
    cw.remove("policy")
    return before, mean_cost()


def main() -> None:
    """Runs the example and checks its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=40, help="versions that are published (default: %(default)s)"
    )
    before, after = train(parser.parse_args().steps)
    print(f"cost of the first version {before:.1f}, of the last {after:.1f}")
    assert after <= ENOUGH * before, "it did not learn"


if __name__ == "__main__":
    main()
