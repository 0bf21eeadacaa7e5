"""Reinforcement learning on one GPU: a trainer publishes versions of a policy, and two players swap them in under captured CUDA graphs.

    python docs/examples/gpu/rl.py --versions 60

Needs PyTorch. The task is that of `docs/examples/rl.py`: a cart that has to come to rest at 0, and evolution strategies (Salimans et al.,
arXiv:1703.03864). Here a player tries its weights on thousands of carts at once, in one CUDA graph that is captured once. The weights
are the tensors of a tree that was got with `swappable=True`: after `swap()` the same graph replays with the new version's values,
since they lie at the same addresses. Nothing is copied to the players, and nothing is captured anew.

The graph also adds up the weights that it used, and the trainer knows the sum of each version: so it notices if a player ever used a
mixture of two versions.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import cableway as cw

PLAYERS = 2
CARTS = 4096  # of one try
STEPS = 50  # of 0.1 s
HIDDEN = 16  # units of the policy
TRIES = 64  # of all players, between two versions
NOISE = 0.05
RATE = 0.02
ENOUGH = 0.7  # the cost falls to at most this part of what it was

Weights = dict[str, Any]


def first_policy(torch: Any) -> Weights:
    """Small random weights, on the GPU."""
    torch.manual_seed(0)
    shapes = {"in": (2, HIDDEN), "bias": (HIDDEN,), "out": (HIDDEN, 1)}
    return {name: 0.3 * torch.randn(shape, device="cuda") for name, shape in shapes.items()}


def cost(torch: Any, weights: Weights, starts: Any) -> Any:
    """What a policy costs on the average: the carts' distance from 0 and their force; the lower the better."""
    state, total = starts, torch.zeros((), device="cuda")
    for _ in range(STEPS):
        force = (torch.tanh(state @ weights["in"] + weights["bias"]) @ weights["out"]).clamp(-2, 2)
        speed = state[:, 1:] + 0.1 * force
        place = state[:, :1] + 0.1 * speed
        state = torch.cat([place, speed], dim=1)
        total = total + (place.square() + 0.01 * force.square()).mean()
    return total


def play(results: Any, go_on: Any, seed: int) -> None:
    """Plays with the newest version, on and on."""
    import torch

    torch.manual_seed(seed)
    tree = cw.get("policy", swappable=True)
    weights = tree.torch()  # stays; what it shows changes with swap()
    noise = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    starts = torch.empty(CARTS, 2, device="cuda").uniform_(-1.5, 1.5)

    def tried() -> Any:
        used = {name: weights[name] + NOISE * noise[name] for name in weights}
        return torch.stack(
            [cost(torch, used, starts), sum(tensor.sum() for tensor in weights.values())]
        )

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # once before the capture, as PyTorch asks for
        tried()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = tried()
    while go_on.is_set():
        tree.swap()
        for tensor in noise.values():
            tensor.normal_()
        graph.replay()
        what, used = found.tolist()
        results.put((tree.version, used, what, {n: t.cpu().numpy() for n, t in noise.items()}))


def train(versions: int) -> tuple[float, float, int]:
    """Trains a policy; returns what it cost at first and at last, and how many versions the players used."""
    import torch

    context = multiprocessing.get_context("spawn")
    results, go_on = cw.Queue(2 * PLAYERS), context.Event()
    policy = first_policy(torch)
    starts = torch.empty(CARTS, 2, device="cuda").uniform_(-1.5, 1.5)
    sums: dict[int, float] = {}  # of each version's weights

    def publish() -> None:
        total = sum(float(tensor.sum()) for tensor in policy.values())
        sums[cw.put("policy", policy).version] = total

    publish()
    before = float(cost(torch, policy, starts))
    go_on.set()
    players = [
        context.Process(target=play, args=(results, go_on, seed), daemon=True)
        for seed in range(PLAYERS)
    ]
    for player in players:
        player.start()
    used = set()
    try:
        for _ in range(versions):
            noises, costs = [], []
            for _ in range(TRIES):
                version, total, what, noise = results.get(timeout=120)
                assert abs(total - sums[version]) < 1e-3, "a player used a mixture of two versions"
                used.add(version)
                noises.append(noise)
                costs.append(what)
            told = torch.tensor(costs, device="cuda")
            better = (told.mean() - told) / (told.std() + 1e-9)
            for name, tensor in policy.items():
                tries = torch.stack([torch.as_tensor(noise[name]) for noise in noises]).cuda()
                tensor += RATE * torch.tensordot(better, tries, dims=1) / TRIES / NOISE
            publish()
    finally:
        go_on.clear()
        for player in players:
            player.kill()
            player.join()
    after = float(cost(torch, policy, starts))
    cw.remove("policy")
    return before, after, len(used)


def main() -> None:
    """Runs the example and checks its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--versions", type=int, default=60, help="that are published (default: %(default)s)"
    )
    versions = parser.parse_args().versions
    before, after, used = train(versions)
    print(
        f"cost of the first version {before:.1f}, of the last {after:.1f}; {used} versions were swapped in"
    )
    assert after <= ENOUGH * before, "it did not learn"
    assert used >= versions // 2, "the players hardly saw new versions"


if __name__ == "__main__":
    main()
