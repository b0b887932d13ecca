"""What constraints cost in PyTorch: rounds of a network with about a million parameters, with 0 to 100 constraints.

The constraints are means of outputs of the network, so that all share one forward pass. Both loops compute them; one
trains on the loss alone, the other has `DriftPlusPenalty` around the same Adam. They take turns, in blocks that
hold every kind of round (gradient sizes are measured in one of ten), and the best of several turns counts. The first
round, which measures all gradients, is shown apart. Prints a table and writes bench-results/torch_cost.json.

    python benchmarks/torch_cost.py [--rounds N] [--turns N] [--device cpu] [--penalty]
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import time

import torch
from common import write
from torch import nn

from ergodrift.torch import DriftPlusPenalty

COUNTS = (1, 2, 10, 100)


def network(outputs, device):
    torch.manual_seed(0)
    hidden = 768
    return nn.Sequential(
        nn.Linear(512, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    ).to(device)


class Loop:
    """A network, its optimiser and its data; `rounds(k)` trains k rounds and returns the seconds."""

    def __init__(self, count, constrained, device, penalty):
        self.net = network(1 + count, device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-4)
        if constrained:
            self.opt = DriftPlusPenalty(self.opt, count, penalty=100.0 if penalty else None)
        self.X, self.y = torch.randn(256, 512, device=device), torch.randn(256, device=device)

    def rounds(self, k):
        if self.X.is_cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(k):
            out = self.net(self.X)
            loss, constraints = (out[:, 0] - self.y).square().mean(), out[:, 1:].mean(0) - 0.01
            self.opt.zero_grad()
            if isinstance(self.opt, DriftPlusPenalty):
                self.opt.backward(loss, constraints)
            else:
                loss.backward()
            self.opt.step()
        if self.X.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--penalty", action="store_true", help="the paper's queue, whose displacement needs a Jacobian")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    size = sum(p.numel() for p in network(1, "cpu").parameters())
    print(f"{size:,} parameters, batches of 256, Adam, {asked.device}; milliseconds a round")
    print(f"{'constraints':>12}{'without':>10}{'with':>10}{'ratio':>8}{'first round':>13}")
    rows = []
    for count in COUNTS:
        loops = [Loop(count, constrained, asked.device, asked.penalty) for constrained in (False, True)]
        loops[0].rounds(1)
        first = loops[1].rounds(1)
        for loop in loops:
            loop.rounds(2)
        turns = [[loop.rounds(asked.rounds) for loop in loops] for _ in range(asked.turns)]
        without, ours = (min(spent) / asked.rounds * 1e3 for spent in zip(*turns, strict=True))
        print(f"{count:12}{without:10.2f}{ours:10.2f}{ours / without:8.2f}{first * 1e3:13.1f}", flush=True)
        rows.append({"constraints": count, "without": without, "with": ours, "first": first * 1e3})
    write("torch_cost", {"unit": "milliseconds a round", "device": asked.device, "parameters": size, "rows": rows})


if __name__ == "__main__":
    main()
