"""A process of `test_parallel`: trains a network on its share of each batch, and writes what it ends with."""

import sys

import torch
import torch.distributed as dist
from torch import nn

from ergodrift.torch import DriftPlusPenalty


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(net, opt, rank, ranks, rounds=25):
    """Loss and constraints are means over samples, so that equal shares average to the batch."""
    for t in range(rounds):
        X = torch.randn(8, 3, generator=torch.Generator().manual_seed(t))[rank::ranks]
        out = net(X)
        opt.zero_grad()
        opt.backward((out - X.sum(-1, keepdim=True)).square().mean(), [out.mean() - 0.1, -out.mean() - 0.1])
        opt.step()


def main(rank, ranks, file, out, penalty):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    net = nn.parallel.DistributedDataParallel(network())
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2, penalty=penalty)
    train(net, opt, rank, ranks)
    torch.save({"x": [p.detach() for p in net.parameters()], "multipliers": opt.multipliers}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5]) or None)
