"""`ed.certify` and `ed.Monitor` on a trained network: whether PyTorch or JAX computes it is all the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import ergodrift as ed
from ergodrift.torch import DriftPlusPenalty

torch.set_num_threads(1)


def record(n, seed):
    """Samples that depend on those before them."""
    noise = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    for t in range(1, n):
        noise[t] += 0.8 * noise[t - 1]
    return noise


@pytest.fixture(scope="module")
def trained():
    """A network whose mean output is to stay below 0.2, and which would be at 1."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    opt = DriftPlusPenalty(torch.optim.Adam(net.parameters(), lr=0.02), 1)
    for rows in torch.as_tensor(record(6400, 0)).reshape(-1, 32, 3):
        out = net(rows).squeeze(-1)
        opt.zero_grad()
        opt.backward((out - 1).square().mean(), out.mean() - 0.2)
        opt.step()
    return net


def judges(net, limit):
    """The same constraint by PyTorch and by JAX, one row a sample."""
    w1, b1, w2, b2 = (jnp.asarray(p.detach().numpy()) for p in net.parameters())

    def by_torch(xi):
        with torch.no_grad():
            return net(torch.as_tensor(np.asarray(xi, np.float32))).numpy() - limit

    @jax.jit
    def by_jax(xi):
        hidden = jnp.tanh(xi.astype("float32") @ w1.T + b1[None])
        return hidden @ w2.T + (b2 - np.float32(limit))[None]

    return by_torch, by_jax


@pytest.mark.parametrize(("limit", "verdict"), [(0.4, "satisfied"), (0.0, "violated")])
def test_certificates_and_monitors_are_those_of_the_function_alone(trained, limit, verdict):
    held_out = record(4000, 1)
    first, second = (ed.certify(judge, ed.SeriesSource(held_out)) for judge in judges(trained, limit))
    np.testing.assert_allclose(first.upper, second.upper, rtol=0, atol=1e-5)
    assert first.verdict == second.verdict == [verdict]
    verdicts = []
    for judge in judges(trained, limit):
        monitor = ed.Monitor(judge)
        verdicts.append([monitor.update(part).verdict for part in np.split(held_out, 8)])
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][-1] == [verdict]
