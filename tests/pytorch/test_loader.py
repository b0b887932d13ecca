"""`diagnose` of a DataLoader, and that nothing else here needs JAX."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from ergodrift.torch import DriftPlusPenalty, diagnose

pytestmark = pytest.mark.x64("diagnose works in float64 whatever JAX is set to: once is enough")


def series(rho, n=3000, seed=0):
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    for t in range(1, n):
        x[t] += rho * x[t - 1]
    return x


def values(batch):
    return batch[0]


def test_the_order_is_that_of_the_record_whatever_the_sampler():
    data = TensorDataset(series(0.9))
    given = diagnose(DataLoader(data, batch_size=64), values)
    shuffled = diagnose(DataLoader(data, batch_size=50, shuffle=True, drop_last=True), values)
    single = diagnose(DataLoader(data, batch_size=None), values)
    assert given.num_samples == shuffled.num_samples == single.num_samples == 3000
    assert given.tau_mix == shuffled.tau_mix == single.tau_mix
    assert 6 < given.tau_mix < 16  # 1 / (1 - 0.9) = 10


def test_it_warns_where_the_order_is_not_the_one_asked_for_and_it_matters():
    dependent, independent = TensorDataset(series(0.9)), TensorDataset(series(0.0))
    loud = [(True, "given", "but the loader shuffles them.*shuffle=False"),
            (False, "shuffled", "reads them in their order.*shuffle=True")]  # fmt: skip
    for shuffle, order, message in loud:
        with pytest.warns(UserWarning, match=message):
            diagnose(DataLoader(dependent, batch_size=64, shuffle=shuffle), values, order=order)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shuffle, order in [(True, "shuffled"), (False, "given"), (True, None), (False, None)]:
            diagnose(DataLoader(dependent, batch_size=64, shuffle=shuffle), values, order=order)
        for shuffle, order, _ in loud:
            diagnose(DataLoader(independent, batch_size=64, shuffle=shuffle), values, order=order)


def test_the_sampler_within_a_batch_sampler_is_the_one_that_counts():
    """Beside it, DataLoader.sampler is a sequential one that nobody uses; and the loader's own collate_fn is kept."""
    data = TensorDataset(series(0.9))

    def doubled(rows):
        return 2 * torch.stack([row[0] for row in rows])

    def loader(sampler):
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 64, False), collate_fn=doubled)

    ranks = {"num_replicas": 2, "rank": 0}
    loud = [
        (loader(RandomSampler(data)), "given"), (loader(SequentialSampler(data)), "shuffled"),
        (loader(DistributedSampler(data, **ranks)), "given"),
        (loader(DistributedSampler(data, **ranks, shuffle=False)), "shuffled"),
    ]  # fmt: skip
    for one, order in loud:
        with pytest.warns(UserWarning, match="training was to see them"):
            diagnose(one, lambda batch: batch, order=order)
        other = {"given": "shuffled", "shuffled": "given"}[order]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            diagnose(one, lambda batch: batch, order=other)
    seen = []
    diagnose(loud[0][0], lambda batch: seen.append(batch) or batch)
    torch.testing.assert_close(torch.cat(seen), 2 * data.tensors[0])


def test_streams_and_several_values_are_read_as_they_come():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(series(0.9).double())

    found = diagnose(DataLoader(Stream(), batch_size=100), lambda x: {"x": x, "square": x.square()}, order="given")
    assert {quantity.name for quantity in found.quantities} == {"x", "square"}


def test_what_is_wrong_is_named():
    loader = DataLoader(TensorDataset(series(0.5, 100)), batch_size=10)
    with pytest.raises(ValueError, match=r"one number for each sample.*reduction='none'"):
        diagnose(loader, lambda batch: batch[0].mean())
    with pytest.raises(ValueError, match=r"got ndarray: no mean"):
        diagnose(loader, lambda batch: batch[0].numpy())
    with pytest.raises(ValueError, match="order must be 'given'"):
        diagnose(loader, values, order="time")
    with pytest.raises(TypeError, match="loader must be a torch"):
        diagnose([1], values)


def test_jax_is_not_loaded_and_training_does_not_need_it():
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('jax', 'jaxlib'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import ergodrift.torch, torch\n"
        "x = torch.nn.Parameter(torch.zeros(1))\n"
        "opt = ergodrift.torch.DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 1)\n"
        "opt.backward((x - 1).square().sum(), x); opt.step(); opt.load_state_dict(opt.state_dict())\n"
        "assert not any(name.split('.')[0] == 'jax' for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert DriftPlusPenalty.__module__ == "ergodrift.torch.optimizer"
