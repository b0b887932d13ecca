"""Sources: the paths they draw, the samples behind the indices, their laws, and what they refuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ergodrift import IIDSource, MarkovChain, MarkovSource, SeriesSource, Zip
from ergodrift.data.sampler import BLOCK, draw
from ergodrift.data.source import level_keys, path_keys, seed_keys
from ergodrift.data.stream import Replay

CHAIN = MarkovChain([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.4, 0.1, 0.5]])
TABLE = {"features": np.arange(6.0).reshape(3, 2), "label": np.array([1, -1, 1])}
SERIES = np.linspace(0.0, 1.0, 100)

SOURCES = {
    "chain": MarkovSource(CHAIN, TABLE),
    "chain with a start": MarkovSource(CHAIN, TABLE, start=2),
    "independent": IIDSource(TABLE, weights=[1, 2, 5]),
    "series": SeriesSource(SERIES),
    "series and chain": Zip(SeriesSource(SERIES), MarkovSource(CHAIN, TABLE)),
    "chain and independent": Zip(MarkovSource(CHAIN, TABLE), IIDSource(np.array([3.0, 4.0]))),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())


def assert_same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


def row(paths: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], paths)


# Paths


@every_source
def test_a_seed_gives_the_same_path_whatever_is_listed_beside_it(source):
    among_others = source.paths([3, 2, 11], 100)
    assert_same(row(source.paths([2, 40, 3], 100), 0), row(among_others, 1))
    assert_same(row(source.paths([2, 40, 3], 100), 2), row(among_others, 0))
    assert_same(row(source.paths(3, 100), 2), row(among_others, 1))
    assert_same(row(source.paths([2], 100), 0), row(among_others, 1))


@every_source
def test_a_short_path_is_the_beginning_of_a_long_one(source):
    long = source.paths(3, 100)
    assert {leaf.shape for leaf in jax.tree.leaves(long)} == {(3, 100)}
    for length in (1, BLOCK, BLOCK + 1):
        assert_same(source.paths(3, length), jax.tree.map(lambda leaf, n=length: leaf[:, :n], long))


@every_source
def test_paths_are_the_same_in_float32_and_float64(source):
    wide = source.paths(3, 100)
    with jax.enable_x64(False):
        assert_same(source.paths(3, 100), wide)


@every_source
def test_a_path_that_was_drawn_can_be_replayed(source):
    paths = source.paths(3, 100)
    starts = source.check_paths(paths, 3, 100)
    again = jax.vmap(lambda start: draw(Replay(source.stream()), start, 2))(starts)
    assert_same(jax.tree.map(lambda leaf: leaf[:, :100], again), paths)


@pytest.mark.parametrize("start", [None, 1])
@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1])
def test_a_markov_source_follows_a_path_of_its_chain(seed, start):
    paths = MarkovSource(CHAIN, TABLE, start).paths([seed], 300)
    wanted = CHAIN.sample_path(path_keys(seed_keys([seed]))[0], 300, start)
    np.testing.assert_array_equal(paths[0], wanted)


def test_seeds_give_different_paths():
    paths = np.asarray(SOURCES["independent"].paths(50, 100))
    assert len({tuple(path) for path in paths}) == 50


def test_a_series_is_read_in_order_by_every_seed():
    paths = SeriesSource(SERIES).paths(3, 100)
    np.testing.assert_array_equal(paths, np.tile(np.arange(100), (3, 1)))


def test_independent_rows_come_with_their_weights_and_without_memory():
    path = np.asarray(IIDSource(TABLE, weights=[1, 2, 5]).paths(1, 100_000))[0]
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (path[:-1:2], path[1::2]), 1)
    law, count = np.outer([1, 2, 5], [1, 2, 5]) / 64, 50_000
    assert (np.abs(pairs / count - law) < 4.5 * np.sqrt(law * (1 - law) / count)).all()


def test_rows_without_weight_never_come():
    path = np.asarray(IIDSource(np.arange(5.0), weights=[0, 1, 0, 3, 0]).paths(1, 10_000))
    assert set(np.unique(path)) == {1, 3}


def test_the_two_parts_of_a_zip_have_keys_of_their_own():
    source = Zip(MarkovSource(CHAIN, TABLE), MarkovSource(CHAIN, TABLE))
    losses, constraints = source.paths([4], 200)
    keys = jax.random.split(path_keys(seed_keys([4]))[0])
    np.testing.assert_array_equal(losses[0], CHAIN.sample_path(keys[0], 200))
    np.testing.assert_array_equal(constraints[0], CHAIN.sample_path(keys[1], 200))


@pytest.mark.parametrize("position", [0, 1, 50])
def test_the_two_parts_of_a_zip_are_independent(position):
    source, seeds = Zip(MarkovSource(CHAIN, TABLE), MarkovSource(CHAIN, TABLE)), 4000
    losses, constraints = (np.asarray(part)[:, position] for part in source.paths(seeds, position + 1))
    # Over independent seeds the correlation of independent numbers has standard error 1 / sqrt(seeds).
    assert abs(np.corrcoef(losses, constraints)[0, 1]) < 4.5 / np.sqrt(seeds)


def test_levels_are_drawn_with_keys_that_paths_do_not_use():
    keys = seed_keys(100)
    data = [jax.random.key_data(k) for k in (keys, path_keys(keys), level_keys(keys))]
    assert len(np.unique(np.concatenate(data), axis=0)) == 300


# Samples and laws


@pytest.mark.parametrize("name", ["chain", "independent"])
def test_xi_is_a_row_of_every_leaf(name):
    xi = SOURCES[name].stream().xi(jnp.int32(1))
    np.testing.assert_array_equal(xi["features"], [2.0, 3.0])
    assert int(xi["label"]) == -1
    several = jax.vmap(SOURCES[name].stream().xi)(jnp.array([2, 0]))
    np.testing.assert_array_equal(several["features"], [[4.0, 5.0], [0.0, 1.0]])
    np.testing.assert_array_equal(several["label"], [1, 1])


def test_narrow_samples_come_back_as_they_were_given():
    """On the device they are kept transposed."""
    data = {"tall": np.arange(2 * 12 * 3.0).reshape(2, 12, 3), "wide": np.ones((2, 3, 12)), "flat": np.ones((2, 12))}
    source = IIDSource(data)
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(source.stream().data))
    assert shapes == [(2, 3, 12), (2, 3, 12), (2, 12)]
    xi = source.stream().xi(jnp.int32(1))
    assert_same(jax.tree.map(np.asarray, xi), jax.tree.map(lambda leaf: leaf[1], data))


def test_xi_of_a_zip_is_a_pair():
    value, record = SOURCES["series and chain"].stream().xi((jnp.int32(99), jnp.int32(2)))
    assert float(value) == 1.0
    np.testing.assert_array_equal(record["features"], [4.0, 5.0])


@every_source
def test_the_example_has_the_shapes_of_a_sample(source):
    paths = source.paths(1, 1)
    xi = source.stream().xi(jax.tree.map(lambda leaf: leaf[0, 0], paths))
    assert jax.tree.structure(source.example) == jax.tree.structure(xi)
    assert jax.tree.map(np.shape, source.example) == jax.tree.map(np.shape, xi)


@every_source
def test_laws_sum_to_one_and_weigh_every_point(source):
    for law in (source.loss_law, source.constraint_law):
        np.testing.assert_allclose(np.sum(law.weights), 1.0, rtol=1e-14)
        assert {len(leaf) for leaf in jax.tree.leaves(law.points)} == {len(law.weights)}


def test_laws_of_plain_sources():
    np.testing.assert_allclose(SOURCES["chain"].loss_law.weights @ CHAIN.P, SOURCES["chain"].loss_law.weights)
    np.testing.assert_allclose(SOURCES["independent"].loss_law.weights, [1 / 8, 2 / 8, 5 / 8])
    np.testing.assert_allclose(SOURCES["series"].loss_law.weights, np.full(100, 0.01))
    for name in ("chain", "independent"):
        assert_same(SOURCES[name].loss_law.points, TABLE)
        assert_same(SOURCES[name].constraint_law, SOURCES[name].loss_law)


def test_a_zip_averages_each_part_under_its_own_law():
    losses, constraints = SeriesSource(SERIES), MarkovSource(CHAIN, TABLE)
    source = Zip(losses, constraints)
    np.testing.assert_array_equal(source.loss_law.points[0], SERIES)
    np.testing.assert_array_equal(source.loss_law.weights, losses.loss_law.weights)
    assert_same(source.constraint_law.points[1], TABLE)
    np.testing.assert_array_equal(source.constraint_law.weights, CHAIN.stationary)
    # The other part is there for its shape alone: one sample, repeated.
    assert_same(source.loss_law.points[1], jax.tree.map(lambda leaf: np.repeat(leaf[:1], 100, axis=0), TABLE))
    np.testing.assert_array_equal(source.constraint_law.points[0], np.zeros(3))


@pytest.mark.parametrize(
    ("source", "length"),
    [
        (SOURCES["chain"], None),
        (SOURCES["independent"], None),
        (SOURCES["series"], 100),
        (SOURCES["series and chain"], 100),
        (SOURCES["chain and independent"], None),
        (Zip(SeriesSource(SERIES), SeriesSource(SERIES[:30])), 30),
    ],
)
def test_only_series_end(source, length):
    assert source.length == length


@pytest.mark.x64("its digits are those of float64")
@every_source
def test_visits_are_the_samples_along_a_path(source):
    paths = source.paths([3, 4], 80)
    path = source.path_of(paths, 1)
    assert_same(path, row(paths, 1))
    xi = jax.tree.map(np.asarray, jax.vmap(source.stream().xi)(path))
    zipped = isinstance(source, Zip)
    for part, (points, rows) in enumerate(source.visits(path)):
        seen = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], points)
        assert_same(seen[part] if zipped else seen, xi[part] if zipped else xi)


# What is refused

TWO = np.array([1.0, 2.0])
CONSTRUCTOR_ERRORS = [
    (lambda: MarkovSource(CHAIN, TWO), ValueError, "data has 2 rows along its leading axis, the chain has 3 states"),
    (lambda: MarkovSource(CHAIN.P, TABLE), TypeError, r"chain must be a MarkovChain, got ndarray; .*MarkovChain\(P\)"),  # pyright: ignore[reportArgumentType]
    (lambda: MarkovSource(CHAIN, TABLE, start=3), ValueError, "start must be between 0 and 2, got 3"),
    (lambda: MarkovSource(CHAIN, TABLE, start=-1), ValueError, "start must be between 0 and 2, got -1"),
    (lambda: IIDSource({"a": np.ones(3), "b": np.ones((4, 2))}), ValueError, "differ along their .*'a'.*3.*'b'.*4"),
    (lambda: IIDSource({"a": np.ones(3), "b": 1.0}), ValueError, "every array needs a leading axis.*'b'"),
    (lambda: SeriesSource(5.0), ValueError, "data: every array needs a leading axis"),
    (lambda: SeriesSource([]), ValueError, "data holds no arrays"),
    (lambda: SeriesSource(None), ValueError, "data holds no arrays"),
    (lambda: SeriesSource(np.zeros((0, 2))), ValueError, "data has no rows"),
    (lambda: IIDSource(np.array([1.0, np.nan])), ValueError, r"data holds nan at index \(1,\)"),
    (lambda: IIDSource({"a": np.array([[1, 2], [3, np.inf]])}), ValueError, r"data\['a'\] holds inf at index \(1, 1\)"),
    (lambda: MarkovSource(CHAIN, np.array([1, -np.inf, 2])), ValueError, r"data holds -inf at index \(1,\)"),
    (lambda: SeriesSource({"a": TWO, "b": (TWO, [TWO * np.nan])}), ValueError, r"data\['b'\]\[1\]\[0\] holds nan"),
    (lambda: IIDSource(TWO, weights=[0.5, -0.25]), ValueError, r"weights must be .*not negative.*-0\.25"),
    (lambda: IIDSource(TWO, weights=[0.5, np.nan]), ValueError, "weights must be finite.*nan"),
    (lambda: IIDSource(TWO, weights=[0.0, 0.0]), ValueError, "weights must be .*not all zero"),
    (lambda: IIDSource(TWO, weights=[1, 2, 3]), ValueError, r"weights must have shape \(2,\), .* got \(3,\)"),
    (lambda: IIDSource(TWO, weights=[[1, 2]]), ValueError, r"weights must have shape \(2,\), .* got \(1, 2\)"),
    (lambda: Zip(TWO, SeriesSource(TWO)), TypeError, "losses must be a plain source .*got ndarray"),  # pyright: ignore[reportArgumentType]
    (lambda: Zip(SeriesSource(TWO), None), TypeError, "constraints must be a plain source .*got NoneType"),  # pyright: ignore[reportArgumentType]
    (lambda: Zip(SOURCES["series and chain"], SeriesSource(TWO)), TypeError, "losses must be a plain .*got Zip"),
]


@pytest.mark.parametrize(("make", "error", "message"), CONSTRUCTOR_ERRORS)
def test_constructors_say_what_is_wrong(make, error, message):
    with pytest.raises(error, match=message):
        make()


PATH_ERRORS = [
    (np.zeros((2, 9), int), ValueError, "paths too short: 9 samples per seed, but num_samples=10"),
    (np.zeros(9, int), ValueError, "paths too short: 9 samples per seed, but num_samples=10"),
    (np.zeros((3, 10), int), ValueError, r"paths must have shape \(seeds, num_samples\) = \(2, 10\), got \(3, 10\)"),
    (np.zeros((2, 10, 1), int), ValueError, r"paths must have shape .*got \(2, 10, 1\)"),
    (np.zeros((2, 10)), TypeError, "paths must hold integers, got float64"),
    (np.zeros((2, 10), bool), TypeError, "paths must hold integers, got bool"),
    (np.full((2, 10), 3), ValueError, "paths must hold states between 0 and 2, got 3 to 3"),
    (np.full((2, 10), -1), ValueError, "paths must hold states between 0 and 2, got -1 to -1"),
]


@pytest.mark.parametrize(("paths", "error", "message"), PATH_ERRORS)
def test_paths_that_cannot_be_replayed_are_refused(paths, error, message):
    with pytest.raises(error, match=message):
        SOURCES["chain"].check_paths(paths, 2, 10)
    with pytest.raises(error, match=message):
        SOURCES["series and chain"].check_paths((np.zeros((2, 10), int), paths), 2, 10)


@pytest.mark.parametrize("paths", [np.zeros((2, 10), int), (np.zeros((2, 10), int),), None])
def test_paths_of_a_zip_must_be_a_pair(paths):
    with pytest.raises(TypeError, match="paths of a Zip must be a pair"):
        SOURCES["series and chain"].check_paths(paths, 2, 10)


def test_one_path_serves_all_seeds_and_is_never_cut():
    path = np.random.default_rng(0).integers(0, 3, size=500)
    with pytest.raises(ValueError, match="paths too long: 500 samples per seed, but num_samples=100"):
        SOURCES["chain"].check_paths(path, 2, 100)
    path = path[:100]
    got = np.asarray(SOURCES["chain"].check_paths(path, 2, 100))
    assert got.shape == (2, 2 * BLOCK)
    np.testing.assert_array_equal(got[:, :100], np.tile(path[:100], (2, 1)))
    assert (got[:, 100:] == path[99]).all()


@pytest.mark.parametrize(
    ("seeds", "error", "message"),
    [
        (0, ValueError, "seeds must be between 1 and .*got 0"),
        (2.5, TypeError, "seeds must be a whole number, got 2.5"),
        ("all", TypeError, "seeds must be a whole number, got 'all'"),
        ([], ValueError, "seeds is empty"),
        ([1, 2, 1], ValueError, r"seeds must differ from each other, got \[1, 2, 1\]"),
        ([-1], ValueError, "seeds must be between 0 and .*got -1"),
        ([2**32], ValueError, "seeds must be between 0 and .*got 4294967296"),
        ([0.5], TypeError, "seeds must be a whole number, got 0.5"),
    ],
)
def test_seeds_that_are_no_seeds_are_refused(seeds, error, message):
    with pytest.raises(error, match=message):
        SOURCES["chain"].paths(seeds, 10)


@pytest.mark.parametrize(("name", "count"), [("chain", 0), ("series", 101), ("series and chain", 101)])
def test_more_samples_than_there_are_are_refused(name, count):
    with pytest.raises(ValueError, match=f"num_samples must be between 1 and .*got {count}"):
        SOURCES[name].paths(1, count)
