"""Passes over a record: every row once in each, orders that chance cannot be told from, and a path for every seed."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import ergodrift as ed
from cases import ar1
from ergodrift.data.passes import ROUNDS, Passes, permuted, radices
from ergodrift.data.sampler import BLOCK, all_bits

PINNED = {"shuffled": [0, 4, 3, 1, 5, 6, 2, 3, 4, 0, 5, 2, 6, 1], "blocks": [6, 0, 1, 2, 3, 4, 5, 4, 5, 6, 1, 2, 3, 0]}
ALPHA = 1e-3  # of the chi-square tests: their seeds are fixed


def orders(sizes, most):
    """(sizes, most) where permutations, one for each size, send 0..most-1."""
    keys = all_bits(jax.random.key(most), (len(sizes), ROUNDS))
    sides = [jnp.asarray(side, jnp.uint32) for side in np.array([radices(int(size)) for size in sizes]).T]
    return np.asarray(_orders(keys, jnp.asarray(sizes, jnp.uint32), *sides, most)).astype(int)


@partial(jax.jit, static_argnums=4)
def _orders(keys, sizes, a, b, most):
    places = jnp.arange(most, dtype=jnp.uint32)
    return jax.vmap(lambda key, n, a, b: permuted(key, places % n, n, (a, b)))(keys, sizes, a, b)


def test_a_permutation_is_a_bijection_for_every_size():
    sizes = np.arange(1, 400)
    found = orders(sizes, 400)
    for size, row in zip(sizes, found, strict=True):
        assert np.array_equal(np.sort(row[:size]), np.arange(size))


def test_a_permutation_of_two_billion_rows_does_not_overflow():
    size, few = 2**31 - 1, jnp.asarray([0, 1, 2, 2**30, 2**31 - 3, 2**31 - 2], jnp.uint32)
    keys = all_bits(jax.random.key(0), (200, ROUNDS))
    found = np.asarray(jax.vmap(lambda key: permuted(key, few, size, radices(size)))(keys)).astype(np.int64)
    assert found.max() < size
    assert all(len(set(row)) == len(few) for row in found.tolist())
    assert abs(found.mean() / size - 0.5) < 4.5 * np.sqrt(1 / 12 / found.size)


def chi_square(counts):
    return scipy.stats.chisquare(counts).pvalue


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 16, 100])
def test_every_place_and_every_pair_of_places_is_equally_likely(size):
    drawn = orders([size] * 12_000, size)
    for place in {0, size // 2, size - 1}:
        assert chi_square(np.bincount(drawn[:, place], minlength=size)) > ALPHA
    for a, b in {(0, 1), (0, size - 1), (size // 2 - 1, size // 2)}:
        if a < b and size <= 16:
            pairs = np.bincount(drawn[:, a] * size + drawn[:, b], minlength=size**2).reshape(size, size)
            assert not np.diag(pairs).any()
            assert chi_square(pairs[~np.eye(size, dtype=bool)]) > ALPHA
    if size <= 5:  # whole permutations
        kinds = np.unique(drawn, axis=0, return_counts=True)[1]
        assert len(kinds) == scipy.special.factorial(size)
        assert chi_square(kinds) > ALPHA
    steps = (drawn[:, 1:] - drawn[:, :-1]) % size  # neighbours do not stay so
    assert size < 3 or chi_square(np.bincount(steps[:, 0], minlength=size)[1:]) > ALPHA


@pytest.mark.parametrize(
    ("order", "rows", "batch", "block"),
    [
        ("given", 7, 3, None),
        pytest.param("given", 150, 150, None, marks=pytest.mark.slow),
        ("shuffled", 1, None, None),
        ("shuffled", 7, 3, None),
        ("shuffled", 200, None, None),
        ("blocks", 7, 3, 7),
        pytest.param("blocks", 150, 64, 9, marks=pytest.mark.slow),
    ],
)
def test_every_row_comes_once_in_every_pass(order, rows, batch, block):
    source = ed.SeriesSource(np.arange(float(rows)), epochs=5, order=order, batch=batch, block=block)
    paths = np.asarray(source.paths(3, source.length))
    passes = paths.reshape(3, 5, -1)
    assert paths.dtype == np.int32
    for one in passes.reshape(15, -1):
        assert np.array_equal(np.sort(one[one >= 0]), np.arange(rows))
    if batch:  # only the last batch of a pass is not full, and it is filled up at its end
        missing = (paths < 0).reshape(15, source.per_pass, batch)
        assert not missing[:, :-1].any()
        assert (missing[:, -1] == (np.arange(batch) >= (rows - 1) % batch + 1)).all()
    if order == "given":
        assert (passes == passes[0, 0]).all()
    elif rows > 20:
        assert len({tuple(one) for one in passes.reshape(15, -1).tolist()}) == 15  # passes differ, and seeds do
    again = source.paths([2], max(source.length // 2, 1))
    assert np.array_equal(again[0], paths[2, : again.shape[1]])


def test_a_path_is_the_same_on_every_machine_and_in_every_precision():
    source = ed.SeriesSource(np.arange(7.0), epochs=2, order="shuffled")
    assert np.asarray(source.paths([11], 14))[0].tolist() == PINNED["shuffled"]
    source = ed.SeriesSource(np.arange(7.0), epochs=2, order="blocks", block=3)
    assert np.asarray(source.paths([11], 14))[0].tolist() == PINNED["blocks"]


def test_blocks_are_runs_of_rows_round_the_end_and_what_is_left_comes_last():
    rows, length = 103, 10
    source = ed.SeriesSource(np.arange(float(rows)), epochs=40, order="blocks", block=length)
    passes = np.asarray(source.paths(1, source.length))[0].reshape(40, rows)
    blocks = passes[:, :100].reshape(40, 10, length)
    assert (np.diff(blocks, axis=2) % rows == 1).all()
    assert (np.diff(passes[:, 100:], axis=1) % rows == 1).all()
    firsts = passes[:, 100]  # what is left over is somewhere else in every pass
    assert len(set(firsts.tolist())) > 20
    assert len({tuple(np.argsort(one[:, 0])) for one in blocks}) > 35


def test_shuffled_rows_are_nearly_independent_and_blocks_keep_their_dependence():
    y = ar1(0.9, 4000)[:, 0]

    def lag(order):
        path = np.asarray(ed.SeriesSource(y, order=order).paths(1, len(y)))[0]
        return np.corrcoef(y[path[1:]], y[path[:-1]])[0, 1]

    assert lag("given") == pytest.approx(0.9, abs=0.03)
    assert abs(lag("shuffled")) < 4.5 / np.sqrt(len(y))
    assert lag("blocks") == pytest.approx(0.9 * (1 - 1 / 16), abs=0.05)  # 16 rows, the cube root of 4,000


@pytest.mark.parametrize("order", ["given", "shuffled", "blocks"])
def test_the_last_samples_that_a_run_can_count_are_right(order):
    sampler = Passes(3, order, None, 2)
    _, last = sampler.block(jax.random.key(0), jnp.int32((2**31 - BLOCK) // BLOCK - 1))
    first = (2**31 - 2 * BLOCK) % 3  # places of the first pass that lie in the block before
    whole = np.asarray(last)[(3 - first) % 3 :][: BLOCK // 3 * 3 - 3].reshape(-1, 3)
    assert (np.sort(whole, axis=1) == [0, 1, 2]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be between 1 and"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        (
            {"epochs": 2**31 - 1},
            r"epochs=2147483647: 2,147,483,647 passes of 10 samples are more than a run can count, 2\^31 - 64",
        ),
        ({"order": "random"}, "order must be one of 'given', 'shuffled', 'blocks', got 'random'"),
        ({"batch": 0}, "batch must be between 1 and 10, got 0"),
        ({"batch": 11}, "batch must be between 1 and 10, got 11"),
        ({"block": 3}, "block=3 goes with order='blocks', got order='given'"),
        ({"order": "blocks", "block": 11}, "block must be between 1 and 10, got 11"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ed.SeriesSource(np.arange(10.0), **options)
    assert ed.SeriesSource(np.arange(10.0), epochs=2**31 // 10 - 7).length == 10 * (2**31 // 10 - 7)


# Looks at the record: as it came, once


QUADRATIC = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x + xi - 0.3, ed.Ball(3.0))
VARIANTS = [
    {"epochs": 3},
    {"epochs": 2, "order": "shuffled"},
    {"order": "blocks", "epochs": 2, "block": 200},
    {"batch": 7},
    {"batch": 7, "epochs": 4, "order": "shuffled"},
]


@pytest.fixture(scope="module")
def slow():
    return ar1(0.9, 3000)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_dependence_is_measured_on_the_record_as_it_came(slow, options):
    plain, read = ed.SeriesSource(slow), ed.SeriesSource(slow, **options)
    once, found = ed.diagnose(plain), ed.diagnose(read)
    assert (found.tau_mix, found.ess, found.num_samples) == (once.tau_mix, once.ess, 3000)
    assert found.warnings == once.warnings
    assert ("makes it no longer" in str(found)) == (options.get("epochs", 1) > 1)
    assert ("random order" in str(found)) == (options.get("order") == "shuffled")
    with_x = ed.diagnose(read, QUADRATIC, np.zeros(1))
    assert with_x.tau_mix == ed.diagnose(plain, QUADRATIC, np.zeros(1)).tau_mix
    x = np.array([-0.5])
    certificates = [ed.certify(QUADRATIC, x, source) for source in (plain, read)]
    assert certificates[0].upper == certificates[1].upper
    assert certificates[1].num_samples == 3000


def test_blocks_that_are_too_short_for_the_data_are_told(slow):
    found = ed.diagnose(ed.SeriesSource(slow, order="blocks", block=5))
    assert "blocks of 5 rows are shorter than these data want" in found.warnings[-1]


def test_a_record_stays_training_data_whatever_its_order(slow):
    head, tail = slow[:2000], slow[2000:]
    for options in [{"order": "shuffled", "epochs": 2}, {"batch": 9}]:
        source = ed.SeriesSource(head, **options)
        result = ed.run(ed.sdpp(), QUADRATIC, source, x0=np.zeros(1), num_samples=100)
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            result.certify()
        with pytest.raises(ValueError, match="samples that the point was fitted on"):
            result.certify(ed.SeriesSource(head[500:] if options.get("order") else head[800:]))
        assert result.certify(ed.SeriesSource(tail, epochs=2)).num_samples == 1000
    # in order, 100 batches of 9 have not seen row 900
    assert result.certify(ed.SeriesSource(head[900:])).num_samples == 1100


@pytest.mark.slow
def test_auto_looks_at_one_pass_and_is_never_worse_than_x0(slow):
    x0 = np.zeros(1)
    for options in (VARIANTS[0], VARIANTS[4]):
        source = ed.SeriesSource(slow, **options)
        chosen = ed.auto(QUADRATIC, source, x0)
        shuffled = options.get("order") == "shuffled"
        assert ("no dependence that counts" in chosen.reason) == shuffled
        assert (
            f"{options['epochs']} times each" in chosen.reason if "epochs" in options else "once each" in chosen.reason
        )
        result = ed.run(chosen, QUADRATIC, source, x0=x0)  # which warns where x0 is better
        assert abs(result.solution[0, 0] - ed.solve_reference(QUADRATIC, source, x0).x[0]) < 0.15
    short = ed.auto(QUADRATIC, ed.SeriesSource(slow[:40], epochs=50), x0)
    assert "50 times each, and 40 of them are too few" in short.reason
