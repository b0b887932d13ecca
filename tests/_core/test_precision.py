"""Precision, promotions and random bits do not depend on how JAX is set."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift._core.precision import double

CHAIN = ed.MarkovChain([[0.9, 0.1, 0.0], [0.05, 0.9, 0.05], [0.3, 0.0, 0.7]])
DATA = np.arange(6.0).reshape(3, 2)


def digest(*paths):
    numbers = (np.ascontiguousarray(np.asarray(path), dtype=np.int32).tobytes() for path in paths)
    return hashlib.sha256(b"".join(numbers)).hexdigest()[:16]


def drawn():
    """What seeds decide: paths of every source, and the levels of MLMC."""
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, ed.Ball(2.0))
    source = ed.MarkovSource(CHAIN, DATA)
    x0, record = jnp.zeros(2), [20, 50, 100, 300]
    result = ed.run(ed.mdpp(1.0, cap=16), problem, source, x0=x0, num_samples=300, seeds=2, record=record)
    return {
        "markov": digest(source.paths(3, 500)),
        "iid": digest(ed.IIDSource(DATA, [1, 2, 3]).paths([0, 7, 4_000_000_000], 500)),
        "zip": digest(*ed.Zip(ed.IIDSource(DATA), source).paths(2, 300)),
        "levels": digest(result.rounds),
    }


# As they have been since the first version: a seed that was published gives the same path for ever.
FIRST = {
    "markov": "4634adc939a0960d", "iid": "7aebc40a9d19ea5a", "zip": "72d32ac8a532e049", "levels": "01171c3e72917f1e",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.threefry_partitionable(True),
        lambda: jax.threefry_partitionable(False),
        lambda: jax.default_prng_impl("rbg"),
        lambda: jax.enable_x64(False),
        lambda: jax.enable_x64(True),
    ],
    ids=["as usual", "not partitionable", "rbg", "x64 off", "x64 on"],
)
def test_a_path_is_a_function_of_its_seed_alone(setting):
    with setting():
        assert drawn() == FIRST


def test_double_is_double_and_promotes():
    narrow = np.ones(2, np.float32)
    for wide in (False, True):
        with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
            with double():
                assert (jnp.asarray(narrow) * jnp.ones(2)).dtype == np.float64
            assert jnp.ones(2).dtype == (np.float64 if wide else np.float32)


def test_an_array_is_one_constant_in_each_precision():
    """And the same one at each use, so that a large array is not copied into a program again and again."""
    k = np.arange(3.0)
    kept = []
    for wide, kind in [(False, np.float32), (True, np.float64), (False, np.float32)]:
        with jax.enable_x64(wide):
            closed = jax.make_jaxpr(lambda x: x * k + k)(jnp.ones(3))
        kept.append(closed)
        assert [(one.dtype, one.shape) for one in closed.consts] == [(kind, (3,))]
        np.testing.assert_array_equal(closed.consts[0], k)
    if jax.__version_info__ >= (0, 10):  # before, JAX made a constant of each trace's own, of the right type
        assert kept[0].consts[0] is kept[2].consts[0]


@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, lambda a: a.view(np.matrix), lambda a: a[::-1].T])
def test_arrays_of_all_sorts_are_constants(make):
    k = make(np.arange(4.0).reshape(2, 2))
    function = jax.jit(lambda x: jnp.sum(x * jnp.asarray(k)))
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            assert float(function(jnp.ones((2, 2)))) == 6.0


ALGORITHMS = [
    *[ed.edpp(2.0), ed.dpp(), ed.mdpp(), ed.adpp(), ed.rdpp(), ed.wdpp(), ed.pd(70, 9.0, 9.0), ed.pd2(9.0)],
    *[ed.sdpp(), ed.srdpp()],
    *[ed.sinha_vaze(70, 9.0), ed.yu_lee_lee(9.0, 9.0), ed.switching(0.5, 0.5, batch=2), ed.augmented_lagrangian(70)],
]


@pytest.mark.slow  # all tests run without promotions, each in its own precision; here in both
@pytest.mark.parametrize("wide", [False, True], ids=["x64 off", "x64 on"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_runs_need_no_promotions(algorithm, wide):
    """Of types or ranks, for points of either precision; averages and domains of all kinds are in other tests."""
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] * xi[:1] - 0.5, ed.Ball(2.0))
    source = ed.MarkovSource(CHAIN, DATA)
    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    with jax.enable_x64(wide), strict[0], strict[1]:
        for kind in [np.float32, np.float64][: 1 + wide]:
            result = ed.run(algorithm, problem, source, x0=np.zeros(2, kind), num_samples=70, seeds=2, record=2)
            assert result.solution.dtype == kind
