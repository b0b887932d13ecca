"""More than one process, more than one device, and a process that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from parallel import network, train
from torch import nn

from ergodrift.torch import DriftPlusPenalty

torch.set_num_threads(1)
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0, 5.0], ids=["scale-free", "penalty"])
def test_two_processes_have_the_same_multipliers_and_train_as_one(penalty, tmp_path):
    """Where loss and constraints are means over samples and sizes of gradients do not matter (a penalty), to rounding;
    the scale-free form measures those of each share, and is close."""
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "parallel.py", str(rank), "2", tmp_path / "meet", tmp_path / f"{rank}.pt",
             str(penalty)],
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error.decode()
    a, b = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert torch.equal(a["multipliers"], b["multipliers"])
    assert all(torch.equal(p, q) for p, q in zip(a["x"], b["x"], strict=True))
    assert a["multipliers"].max() > 0
    net = network()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2, penalty=penalty or None)
    train(net, opt, 0, 1)
    near = {"rtol": 1e-4, "atol": 1e-5} if penalty else {"rtol": 0.5, "atol": 0.05}
    torch.testing.assert_close(a["multipliers"], opt.multipliers, **near)


@pytest.mark.slow
def test_names_in_another_order_on_another_rank_are_refused(tmp_path):
    """A dict that is made from a set: values would be averaged with those of other constraints."""
    code = f"""
import sys, torch, torch.distributed as dist
from ergodrift.torch import DriftPlusPenalty
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2)
x = torch.nn.Parameter(torch.zeros(2))
opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 2)
names = ["a", "b"]
opt.backward(x.sum(), {{name: x[i] for i, name in enumerate(names)}})
opt.step()
opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 2)
try:
    opt.backward(x.sum(), {{name: x[0] for name in (names if rank else names[::-1])}})
except ValueError as error:
    assert "another order, on another rank" in str(error)
    print("refused")
dist.destroy_process_group()
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in processes:
        out, error = process.communicate(timeout=300)
        assert out.decode().strip() == "refused", error.decode()


@pytest.mark.slow
def test_a_killed_process_goes_on_from_its_file(tmp_path):
    """Killed at any moment, it ends where one that was left alone ends."""
    code = f"""
import os, sys, torch
sys.path.insert(0, {str(HERE)!r})
from parallel import network
from ergodrift.torch import DriftPlusPenalty
torch.set_num_threads(1)
net = network()
opt = DriftPlusPenalty(torch.optim.Adam(net.parameters(), lr=0.01), 1)
start, file = 0, sys.argv[1]
if os.path.exists(file):
    saved = torch.load(file, weights_only=True)
    net.load_state_dict(saved["net"]); opt.load_state_dict(saved["opt"]); start = saved["t"]
for t in range(start, 400):
    X = torch.randn(8, 3, generator=torch.Generator().manual_seed(t))
    out = net(X)
    opt.zero_grad(); opt.backward((out - X.sum(-1, keepdim=True)).square().mean(), out.mean() - 0.1); opt.step()
    if t % 20 == 19:
        torch.save({{"net": net.state_dict(), "opt": opt.state_dict(), "t": t + 1}}, file + ".new")
        os.replace(file + ".new", file)
torch.save([opt.multipliers, *(p.detach() for p in net.parameters())], file + ".end")
"""

    def started(name):
        return subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)])

    whole = started("whole")
    killed = started("killed")
    limit = time.monotonic() + 300
    while not (tmp_path / "killed").exists() and time.monotonic() < limit:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() in (-signal.SIGKILL, 0)
    assert started("killed").wait(300) == 0
    assert whole.wait(300) == 0
    a, b = (torch.load(tmp_path / f"{name}.end", weights_only=True) for name in ("whole", "killed"))
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU beside the processor")
def test_parameters_may_be_on_several_devices():
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        first, last = nn.Linear(3, 4), nn.Linear(4, 1).to(device)
        for penalty in (None, 5.0):
            opt = DriftPlusPenalty(
                torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1), 2, penalty=penalty
            )
            for t in range(25):
                X = torch.randn(8, 3, generator=torch.Generator().manual_seed(t))
                out = last(first(X).tanh().to(device)).squeeze(-1)
                opt.zero_grad()
                opt.backward((out - X.sum(-1).to(device)).square().mean(), {"a": out - 0.1, "b": -out.mean().cpu()})
                opt.step()
            results.append(opt.multipliers.cpu())
    torch.testing.assert_close(results[:2], results[2:], rtol=1e-3, atol=1e-4)
