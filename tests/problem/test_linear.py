"""Linear models: the fused pass gives what plain functions give, dense or sparse, for every link and on every path."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from digits import rounded
from ergodrift.problem import LINKS, Problem, logistic_in_groups, total_and_slopes

RNG = np.random.default_rng(3)
COUNTS = (40, 7, 33)  # states differ in size: some rows are padding
FEATURES = [RNG.normal(size=(n, 4)) * (RNG.random((n, 4)) < 0.6) for n in COUNTS]
LABELS = [RNG.choice([-1.0, 1.0], size=n) for n in COUNTS]
OFFSETS = [RNG.normal(size=n) for n in COUNTS]
NORMALS = RNG.normal(size=(3, 2, 4))
CHAIN = ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3))
PLAIN = {
    "logistic": lambda m: np.logaddexp(0, -m),
    "hinge": lambda m: np.maximum(1 - m, 0),
    "squared": lambda m: m**2 / 2,
}


def model_and_data(link, sparse=False, offsets=None):
    model = ed.LinearModel(link, ed.Ball(3.0))
    features = [sp.csr_array(part) for part in FEATURES] if sparse else FEATURES
    return model, model.data(features, LABELS, offsets=offsets, normals=NORMALS, limits=[0.3, 0.2])


def row(data, state):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[state]), data)


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("offsets", [None, OFFSETS], ids=["", "offsets"])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("state", range(3))
def test_loss_and_constraints_are_the_written_out_formulas(state, link, offsets, sparse):
    model, data = model_and_data(link, sparse, offsets)
    x = np.array([0.5, -1.2, 0.3, 0.8])
    margins = LABELS[state] * (FEATURES[state] @ x) + (0 if offsets is None else offsets[state])
    feedback = model.feedback(jnp.asarray(x), row(data, state))
    np.testing.assert_allclose(feedback.loss, PLAIN[link](margins).mean(), rtol=1e-13)
    np.testing.assert_allclose(feedback.constraints, NORMALS[state] @ x - [0.3, 0.2], rtol=1e-13)
    np.testing.assert_array_equal(feedback.constraint_jac, NORMALS[state])


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("link", [*LINKS, lambda m: jnp.exp(-m)], ids=[*LINKS, "callable"])
def test_the_fused_pass_agrees_with_automatic_differentiation(link, sparse):
    model, data = model_and_data(link, sparse)
    for state in range(3):
        x, xi = jnp.asarray([0.4, 0.1, -0.7, 1.1]), row(data, state)
        fused, plain = model.feedback(x, xi), Problem.feedback(model, x, xi)
        for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.x64("its digits are those of float64")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-300, 300), min_size=32, max_size=32))
def test_the_logistic_sum_is_right_for_margins_of_any_size(margins):
    total, slopes = total_and_slopes(LINKS["logistic"], jnp.asarray(margins))
    m = np.array(margins)
    np.testing.assert_allclose(total, np.logaddexp(0, -m).sum(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slopes, -np.exp(-np.logaddexp(0, m)), rtol=1e-12, atol=1e-300)


@pytest.mark.x64("its digits are those of float64")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-300, 300), min_size=32, max_size=32), st.sampled_from([jnp.float32, jnp.float64]))
def test_the_pass_in_groups_for_gpus_is_the_same_pass(margins, kind):
    features = np.stack([margins, np.linspace(-1, 1, 32)], axis=1)
    model = ed.LinearModel("logistic", ed.Ball(5.0))
    data = model.data([features], normals=np.zeros((1, 1, 2)), limits=[1.0])
    xi = jax.tree.map(lambda leaf: jnp.asarray(leaf[0], kind), data)
    x = jnp.asarray([1.0, 0.3], kind)
    m = features @ np.asarray(x, float)
    total, gradient = logistic_in_groups(x, xi)
    tiny = 40 * float(jnp.finfo(kind).eps)  # of sums of 32 terms
    np.testing.assert_allclose(total, np.logaddexp(0, -m).sum(), rtol=tiny)
    slopes = -np.exp(-np.logaddexp(0, m))
    np.testing.assert_allclose(gradient, slopes @ features, atol=tiny * np.abs(slopes[:, None] * features).sum())


def run(problem, data, algorithm=None):
    source = ed.MarkovSource(CHAIN, data)
    algorithm = algorithm or ed.edpp(5.0)
    return ed.run(algorithm, problem, source, x0=np.zeros(4), num_samples=500, seeds=2, record=5)


@pytest.mark.slow
@pytest.mark.x64("its digits are those of float64")
def test_runs_agree_with_the_plain_problem_dense_and_sparse():
    model, data = model_and_data("logistic")
    plain = ed.Problem(model.loss, model.constraints, model.geometry)
    expected = run(plain, data)
    for sparse in (False, True):
        found = run(*model_and_data("logistic", sparse))
        np.testing.assert_allclose(found.x, expected.x, atol=1e-12)
        np.testing.assert_allclose(found.loss_sum, expected.loss_sum, rtol=1e-12)


def test_expectations_are_exact():
    model, data = model_and_data("logistic")
    source = ed.MarkovSource(CHAIN, data)
    reference = ed.solve_reference(model, source, np.zeros(4))
    by_hand = np.mean([PLAIN["logistic"](y * (a @ reference.x)).mean() for a, y in zip(FEATURES, LABELS, strict=True)])
    np.testing.assert_allclose(reference.value, by_hand, rtol=1e-12)


def test_own_constraints_are_differentiated():
    def squares(x, xi):
        return jnp.sum(x**2)[None] - xi.limits[:1]

    model = ed.LinearModel("squared", ed.Ball(3.0), squares)
    data = model.data(FEATURES, offsets=OFFSETS, normals=NORMALS, limits=[0.3, 0.2])
    x = jnp.asarray([0.4, 0.1, -0.7, 1.1])
    feedback = model.feedback(x, row(data, 0))
    np.testing.assert_allclose(feedback.constraints, [jnp.sum(x**2) - 0.3])
    np.testing.assert_allclose(feedback.constraint_jac, 2 * x[None])


def test_equal_models_share_their_compilation():
    first, data = model_and_data("logistic")
    x, xi = jnp.zeros(4), row(data, 0)
    first.feedback(x, xi)
    compiled: Any = ed.LinearModel._feedback
    before = compiled._cache_size()
    ed.LinearModel("logistic", ed.Ball(1.0)).feedback(x, xi)
    assert compiled._cache_size() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": []}, "features must hold a matrix for each state"),
        ({"features": [np.ones(3)]}, "features must hold a matrix for each state"),
        ({"features": [np.ones((2, 3)), np.ones((2, 4))]}, "as many columns in every state"),
        ({"labels": LABELS[:2]}, "labels must hold one number for each row"),
        ({"labels": [y[:-1] for y in LABELS]}, "labels must hold one number for each row"),
        ({"labels": [np.zeros(n) for n in COUNTS]}, "labels must be -1 or 1"),
        ({"offsets": [0.0, 0.0, 0.0]}, "offsets must hold one number for each row"),
        ({"normals": np.ones((3, 4))}, r"normals must have shape \(3, k, 4\)"),
        ({"limits": [1.0, 2.0, 3.0]}, "limits must have shape"),
    ],
)
def test_wrong_tables_are_refused(change, message):
    arguments = {"features": FEATURES, "labels": LABELS, "normals": NORMALS, "limits": [0.3, 0.2], **change}
    with pytest.raises(ValueError, match=message):
        ed.LinearModel("logistic", ed.Ball(1.0)).data(arguments.pop("features"), arguments.pop("labels"), **arguments)


def test_an_unknown_link_is_refused():
    with pytest.raises(ValueError, match="link must be one of 'logistic', 'hinge', 'squared', got 'probit'"):
        ed.LinearModel("probit", ed.Ball(1.0))


# Links that are not finite at 0, where the rows that fill states up have their margins.


@jax.custom_vjp
def barrier(margins):
    return -jnp.log(margins)


barrier.defvjp(lambda margins: (barrier(margins), margins), lambda margins, out: (-out / margins,))

STEEP = {
    "log": (lambda m: -jnp.log(m), lambda m: -np.log(m), lambda m: -1 / m),
    "reciprocal": (lambda m: 1 / m, lambda m: 1 / m, lambda m: -1 / m**2),
    "root": (lambda m: -jnp.sqrt(m), lambda m: -np.sqrt(m), lambda m: -0.5 / np.sqrt(m)),
    "power": (lambda m: m**-1.5, lambda m: m**-1.5, lambda m: -1.5 * m**-2.5),
    "entropy": (lambda m: m * jnp.log(m), lambda m: m * np.log(m), lambda m: np.log(m) + 1),
    "a rule of its own": (barrier, lambda m: -np.log(m), lambda m: -1 / m),
}


@pytest.mark.parametrize(
    ("sparse", "offsets", "kind"),
    [
        pytest.param(False, False, jnp.zeros(()).dtype, id="dense"),
        pytest.param(True, True, np.float32, id="sparse with offsets, float32"),
    ],
)
@pytest.mark.parametrize("link", STEEP)
def test_a_link_may_be_infinite_at_0(link, offsets, sparse, kind):
    link, plain, slope = STEEP[link]
    features = [RNG.uniform(0.5, 1.5, size=(n, 3)) for n in COUNTS]
    added = [RNG.uniform(0.1, 0.2, size=n) for n in COUNTS] if offsets else None
    model = ed.LinearModel(link, ed.Ball(3.0))
    parts: Any = [sp.csr_array(part) for part in features] if sparse else features
    data = model.data(parts, offsets=added, normals=np.ones((3, 1, 3)), limits=[9.0])
    x, small = np.array([0.5, 0.2, 0.9]), 1e-12 if kind == np.float64 else 2e-5
    for state in range(3):
        margins = features[state] @ x + (added[state] if added else 0)
        xi = jax.tree.map(lambda leaf: leaf.astype(kind) if leaf.dtype == float else leaf, row(data, state))
        plainly = Problem(model.loss, model.constraints, model.geometry)
        fused = model.compact_feedback(jnp.asarray(x, kind), xi)
        for feedback in (model.feedback(jnp.asarray(x, kind), xi), plainly.feedback(jnp.asarray(x, kind), xi), fused):
            np.testing.assert_allclose(feedback.loss, plain(margins).mean(), rtol=small)
            np.testing.assert_allclose(
                feedback.loss_grad, features[state].T @ slope(margins) / len(margins), rtol=small
            )
        assert fused.compact is not None
        assert np.isfinite(fused.compact.numbers).all()
        tangent = plain(margins).mean() - (slope(margins) * (features[state] @ x)).mean()
        np.testing.assert_allclose(fused.compact.numbers[-1], tangent, rtol=small, atol=small)


@pytest.mark.slow
def test_a_run_with_a_link_that_is_infinite_at_0_finds_the_reference():
    """Log-optimal portfolios: maximise E[log(returns . x)] on a simplex; states differ in their number of days."""
    returns = [1 + 0.3 * RNG.normal(size=(n, 3)).clip(-2, 2) for n in COUNTS]
    model = ed.LinearModel(lambda m: -jnp.log(m), ed.Simplex())
    source = ed.MarkovSource(CHAIN, model.data(returns, normals=np.tile([[1.0, 0.0, 0.0]], (3, 1, 1)), limits=[0.4]))
    reference = ed.solve_reference(model, source, np.full(3, 1 / 3))
    for algorithm in (ed.edpp(4.0), ed.rdpp()):
        found = ed.run(algorithm, model, source, x0=np.full(3, 1 / 3), num_samples=20_000, record=1)
        quality = ed.metrics.evaluate(found, model, source, reference)
        assert abs(float(quality.lagrangian_gap[0, -1])) < 1e-3


def test_fast_logarithms_can_be_turned_off():
    for link in ("logistic", lambda m: jnp.log1p(jnp.exp(-m))):
        fast, plain = (ed.LinearModel(link, ed.Ball(3.0), fast_logarithms=on) for on in (True, False))
        xi = row(fast.data(FEATURES, LABELS, normals=NORMALS, limits=[0.3, 0.2]), 0)
        x = jnp.asarray([0.4, 0.1, -0.7, 1.1])
        texts = [str(jax.make_jaxpr(model.compact_feedback)(x, xi)) for model in (fast, plain)]
        assert ["bitcast_convert_type" in text for text in texts] == [True, False]
        np.testing.assert_allclose(fast.feedback(x, xi).loss, plain.feedback(x, xi).loss, rtol=1e-14)


def test_a_link_may_be_a_loop():
    """Its length is found out on the way: it can be differentiated forwards only."""

    def reciprocal(margins):
        return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] / margins), (0, margins))[1]

    margins = jnp.asarray(RNG.uniform(1, 2, size=40))
    total, slopes = total_and_slopes(reciprocal, margins)
    np.testing.assert_allclose(total, jnp.sum(1 / margins), rtol=rounded(1e-14))
    np.testing.assert_allclose(slopes, -1 / margins**2, rtol=rounded(1e-14))
