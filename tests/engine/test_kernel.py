"""The GPU kernel, interpreted on a CPU: it gives what the plain loop gives, for every algorithm and layout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.engine import kernel, loop
from ergodrift.engine.carry import Place
from ergodrift.problems import fairness, synthetic

PROBLEM, DATA, BOUNDS = fairness(*synthetic(points=90))
SOURCE = ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3)), DATA)
ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in [
        ed.edpp(3.0), ed.edpp(3.0, horizon=150), ed.mdpp(), ed.adpp(),
        ed.pd(150, BOUNDS.loss_grad, BOUNDS.constraints), ed.pd2(BOUNDS.loss_grad),
    ]
}  # fmt: skip


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Runs take the way they take on a GPU, with the kernel interpreted or left out."""

    def go(algorithm, *, with_kernel, seeds=3, **options):
        each = loop.ALL
        if with_kernel:
            monkeypatch.setattr(kernel, "INTERPRET", True)
            each = each._replace(take_block=functools.partial(kernel.take_block, loop.take_sample))
        monkeypatch.setattr(
            loop, "advance", lambda spec, *at, platform: loop._advance(spec, Place(*at[:4]), at[4], each)
        )
        loop.advance_on.cache_clear()
        return ed.run(
            algorithm,
            PROBLEM,
            SOURCE,
            x0=np.zeros(3),
            num_samples=150,
            seeds=seeds,
            record=[0, 1, 64, 65, 150],
            **options,
        )

    yield go
    loop.advance_on.cache_clear()


def agree(one, other, rtol=1e-11):
    for name in ("rounds", "samples_used", "x", "x_mean", "queue", "loss_sum", "constraint_sum", "weights"):
        pairs = zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(getattr(other, name)), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_kernel_is_the_plain_loop(name, as_on_gpu):
    agree(as_on_gpu(ALGORITHMS[name], with_kernel=True), as_on_gpu(ALGORITHMS[name], with_kernel=False))


@pytest.mark.x64("its digits are those of float64")
def test_side_by_side_is_one_after_the_other(as_on_gpu, monkeypatch):
    beside = as_on_gpu(ed.mdpp(), with_kernel=False)
    monkeypatch.undo()
    loop.advance_on.cache_clear()
    options = {"x0": np.zeros(3), "num_samples": 150, "seeds": 3, "record": [0, 1, 64, 65, 150]}
    agree(beside, ed.run(ed.mdpp(), PROBLEM, SOURCE, **options))


@pytest.mark.slow
@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("layout", [kernel.Layout(4, 1), kernel.Layout(2, 1), kernel.Layout(1, 8)], ids=str)
def test_every_layout_gives_the_same(layout, as_on_gpu, monkeypatch):
    """Three seeds do not fill a share of two or four."""
    expected = as_on_gpu(ed.edpp(3.0), with_kernel=False)
    monkeypatch.setattr(kernel.Layout, "of", staticmethod(lambda seeds, rows: layout))
    agree(as_on_gpu(ed.edpp(3.0), with_kernel=True), expected)


@pytest.mark.x64("its digits are those of float64")
def test_given_levels_are_replayed_in_the_kernel(as_on_gpu):
    levels = np.random.default_rng(0).geometric(0.5, size=(3, 20))
    agree(*(as_on_gpu(ed.mdpp(), with_kernel=with_kernel, levels=levels) for with_kernel in (True, False)))


def spec(problem: ed.Problem = PROBLEM, data=DATA, algorithm=None):
    method = (algorithm or ed.edpp(3.0)).bind(problem)
    return loop.RunSpec(problem, method, ed.MarkovSource(SOURCE.chain, data).stream(), None)


def test_it_knows_what_it_can_do():
    x = jnp.zeros(3)
    plain = ed.Problem(PROBLEM.loss, PROBLEM.constraints, PROBLEM.geometry)
    hinge = ed.LinearModel("hinge", ed.Ball(5.0))
    box = ed.LinearModel("logistic", ed.Box(-1.0, 1.0))
    assert kernel.suits(spec(), x)
    assert kernel.suits(spec(algorithm=ed.mdpp()), x)
    assert kernel.suits(spec(algorithm=ed.pd2(9.0)), x)
    assert not kernel.suits(spec(algorithm=ed.pd2(9.0, aggregate="max")), x)
    assert not kernel.suits(spec(plain), x)
    assert not kernel.suits(spec(hinge), x)
    assert not kernel.suits(spec(box), x)


@pytest.mark.parametrize(("seeds", "rows"), [(1, 2000), (256, 2000), (5000, 2000), (40_000, 2000), (40_000, 9000)])
def test_products_stay_in_range(seeds, rows):
    layout = kernel.Layout.of(seeds, rows)
    assert 0.5 ** (rows / layout.chunk) > np.finfo(np.float32).tiny


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU; the tests above interpret the same kernel")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_real_gpu_gives_what_the_cpu_gives(name):
    """float64, 1,000 rounds, to 1e-9."""
    options = {"x0": np.zeros(3), "num_samples": 1000, "seeds": 3, "record": 20}
    with jax.default_device(jax.devices("cpu")[0]):
        expected = ed.run(ALGORITHMS[name], PROBLEM, SOURCE, **options)
    agree(ed.run(ALGORITHMS[name], PROBLEM, SOURCE, **options), expected, rtol=1e-9)
