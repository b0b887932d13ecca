"""Tables of what is known of a state: the same feedback as the functions give, and only where they pay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from digits import KIND, rounded
from ergodrift._core import tree
from ergodrift.data.stream import Replay
from ergodrift.engine.carry import RunSpec
from ergodrift.engine.lookup import with_tables
from ergodrift.problem import Known, expansion, tabulated

STATES, ROWS = 3, 200
RNG = np.random.default_rng(5)
TABLE = {
    "a": RNG.normal(size=(STATES, ROWS, 3)),
    "y": RNG.normal(size=(STATES, ROWS)),
    "n": RNG.integers(0, 5, size=(STATES, ROWS)),
}
SOURCE = ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3)), TABLE)
X0, LIMITS = np.array([0.3, -0.2, 0.5]), np.array([0.1, 0.2, 0.3])


def margins(x, xi):
    return xi["a"] @ x


def logistic(x, xi):
    return jnp.mean(jax.nn.softplus(margins(x, xi)))


def squares(x, xi):
    return jnp.mean((margins(x, xi) - xi["y"]) ** 2) / 2


def both(x, xi):
    value = jnp.mean(xi["y"] * margins(x, xi))
    return jnp.stack([value - 0.5, -value - 0.5])


def whole(x, xi):
    return jnp.mean(xi["n"].astype(x.dtype)[:, None] * xi["a"], axis=0)[None] @ x - 0.25


def in_parts(x, xi):
    m = margins(x, xi)
    parts = jnp.stack([jnp.mean(m), jnp.mean(jnp.exp(m)), jnp.mean(m * xi["y"])])
    return parts - jnp.asarray(LIMITS, x.dtype)


def only_some(x, xi):
    m = margins(x, xi)
    return jnp.mean(jnp.where(xi["y"] > 0, m, jnp.abs(m)))[None]


def nearly(x, xi):
    return both(x, xi) + 1e-9 * x[0] ** 2


def many(x, xi):
    return jnp.stack([jnp.mean(xi["y"] * margins(x, xi)) - i for i in range(10)])


def centred(x, xi):
    return jnp.mean(jax.nn.softplus((xi["a"] - xi["a"].mean(0, keepdims=True)) @ x))


def weighted(x, xi):
    return jnp.sum(jax.nn.softmax(xi["y"]) * jax.nn.softplus(margins(x, xi)))


def of_squares(x, xi):
    features = jnp.concatenate([xi["a"], xi["a"] ** 2], axis=1)
    return jnp.mean(jax.nn.softplus(xi["y"] * (features @ jnp.concatenate([x, x]))))


def of_groups(x, xi):
    groups = jax.nn.one_hot(xi["n"], 5, dtype=x.dtype)
    return jnp.mean(jax.nn.softplus(margins(x, xi) + groups @ jnp.concatenate([x, x[:2]])))


def by_columns(x, xi):
    a = xi["a"]
    spread = jnp.mean(jax.nn.sigmoid(a[:, 0] * x[0] + a[:, 1] * x[1] + a[:, 2] * x[2]) * jnp.exp(xi["y"]))
    return jnp.append(both(x, xi), spread - 1.0)


def by_chance(x, xi):
    features = jnp.cos(xi["a"] @ jax.random.normal(jax.random.key(3), (3, 4), x.dtype))
    return jnp.mean(jax.nn.softplus(features[:, :3] @ x))[None]


def by_branch(x, xi):
    shares = jax.nn.softmax(xi["y"])
    return jnp.where(x[0] > 0, shares @ jnp.tanh(margins(x, xi)), shares @ jnp.sin(xi["y"]) - x[1])[None]


def of_mapping(function):
    return lambda x, xi: function(jnp.append(x["w"], x["b"]), xi)


BALL, POINT = ed.Ball(3.0), X0
NESTED = ed.Product({"w": ed.Ball(3.0), "b": ed.Box(-1.0, 1.0)}), {"w": X0[:2], "b": X0[2]}


@pytest.mark.parametrize(
    ("loss", "constraints", "geometry", "x0", "quadratic", "affine"),
    [
        (squares, both, BALL, POINT, True, (True, True)),
        (logistic, whole, BALL, POINT, False, (True,)),
        (logistic, in_parts, BALL, POINT, False, (True, False, True)),
        (logistic, many, BALL, POINT, False, (True,) * 10),
        (of_mapping(squares), of_mapping(in_parts), *NESTED, True, (True, False, True)),
    ],
    ids=["affine", "integers", "in parts", "many", "mapping"],
)
def test_looked_up_and_asked_the_feedback_is_the_same(loss, constraints, geometry, x0, quadratic, affine):
    x0 = jax.tree.map(lambda leaf: jnp.asarray(leaf, KIND), x0)
    problem, stream = ed.Problem(loss, constraints, geometry), tree.cast(SOURCE.stream(), KIND)
    asked, tables = tabulated(problem, stream, STATES, x0, 1000)
    assert isinstance(asked, expansion.Tabulated)
    assert asked.plan.affine == affine
    assert (tables[0] is not None) == quadratic
    x = jax.tree.map(lambda leaf: leaf + 0.4, x0)

    @jax.jit
    def compared(x):
        states = jnp.arange(STATES)
        known = jax.vmap(lambda state: stream._replace(data=Known(stream.data, *tables)).xi(state))(states)
        return (
            jax.vmap(lambda xi: asked.feedback(x, xi))(known),
            jax.vmap(lambda state: problem.feedback(x, stream.xi(state)))(states),
        )

    looked_up, plain = compared(x)
    assert jax.tree.structure(looked_up) == jax.tree.structure(plain)
    for one, other in zip(jax.tree.leaves(looked_up), jax.tree.leaves(plain), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=rounded(2e-14))


@pytest.mark.parametrize(
    ("loss", "constraints", "x0", "kept"),
    [
        (centred, in_parts, POINT, [(3, 3, 200)]),
        (weighted, by_columns, POINT, [(3, 200), (3, 200)]),
        (of_squares, by_chance, POINT, [(3, 6, 200), (3, 4, 200)]),
        (of_groups, by_branch, POINT, [(3, 5, 200), (3, 200), (3,)]),
        (jax.checkpoint(centred), nearly, POINT, [(3, 3, 200)]),
        (lambda x, xi: centred(x, xi) + weighted(x, xi), both, POINT, [(3, 3, 200), (3, 200)]),
        (of_mapping(centred), of_mapping(by_columns), NESTED[1], [(3, 3, 200), (3, 200)]),
    ],
    ids=["centred", "weights", "squares, chance", "groups, branch", "checkpoint", "two terms", "mapping"],
)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "as they are"])
def test_what_does_not_depend_on_x_is_kept_and_the_feedback_is_the_same(loss, constraints, x0, kept, fast):
    x0 = jax.tree.map(lambda leaf: jnp.asarray(leaf, KIND), x0)
    geometry = NESTED[0] if isinstance(x0, dict) else BALL
    problem = ed.Problem(loss, constraints, geometry, fast_logarithms=fast)
    plain = tree.cast(SOURCE.stream(), KIND)
    spec = with_tables(RunSpec(problem, None, plain, None), STATES, x0, 1000)  # type: ignore[arg-type]
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(spec.stream.data.kept)]  # type: ignore[attr-defined]
    assert set(shapes) == set(kept) if fast else set(shapes) >= {shape for shape in kept if len(shape) == 3}

    @jax.jit
    def compared(x, state):
        return spec.problem.feedback(x, spec.stream.xi(state)), problem.feedback(x, plain.xi(state))

    found = compared(jax.tree.map(lambda leaf: leaf + 0.4, x0), jnp.int32(2))
    assert jax.tree.structure(found[0]) == jax.tree.structure(found[1])
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=0, atol=rounded(2e-14))


def test_a_function_that_is_traced_otherwise_computes_all_by_itself():
    """What is kept is known by its number, which says nothing of another list of equations."""
    rows = [lambda a: a - a.mean(0, keepdims=True), lambda a: (0 * a + a) - a.mean(0, keepdims=True)]

    def moody(x, xi):
        return jnp.mean(jax.nn.softplus(rows[0](xi["a"]) @ x))

    x0, plain = jnp.asarray(X0, KIND), tree.cast(SOURCE.stream(), KIND)
    problem = ed.Problem(moody, both, BALL)
    spec = with_tables(RunSpec(problem, None, plain, None), STATES, x0, 1000)  # type: ignore[arg-type]
    assert spec.stream.data.kept  # type: ignore[attr-defined]
    rows.reverse()
    found, wanted = (
        spec.problem.feedback(x0, spec.stream.xi(jnp.int32(1))),
        problem.feedback(x0, plain.xi(jnp.int32(1))),
    )
    np.testing.assert_allclose(found.loss_grad, wanted.loss_grad, rtol=0, atol=rounded(2e-14))


def test_a_round_computes_none_of_what_is_kept():
    def ranked(x, xi):
        return jnp.mean(jax.nn.softplus(jnp.sort(xi["y"]) * margins(x, xi)))

    x0, found = jnp.asarray(X0, KIND), {}
    for on in (True, False):
        spec = RunSpec(ed.Problem(ranked, both, BALL, tabulate=on), None, tree.cast(SOURCE.stream(), KIND), None)  # type: ignore[arg-type]
        spec = with_tables(spec, STATES, x0, 1000)

        def rounds(x, states, spec=spec):
            return jax.lax.scan(lambda y, s: (y - spec.problem.feedback(y, spec.stream.xi(s)).loss_grad, s), x, states)

        found[on] = jax.jit(rounds).lower(x0, np.arange(4)).compile().as_text()
    assert "sort(" in found[False]
    assert "sort(" not in found[True]


def test_what_is_kept_must_be_finite_and_tables_are_made_all_the_same():
    def masked(x, xi):
        return jnp.mean(jnp.where(xi["n"] > 0, jnp.log(xi["n"].astype(x.dtype)) + 0 * xi["y"], 0) * margins(x, xi)) ** 4

    def unmasked(x, xi):
        logs = jnp.log(xi["n"].astype(x.dtype))
        return jnp.mean(jnp.where(x[0] > 9, logs, margins(x, xi)) ** 4)

    x0, stream = jnp.asarray(X0, KIND), tree.cast(SOURCE.stream(), KIND)
    for loss, count in ((masked, 1), (unmasked, 0)):
        asked, tables = tabulated(ed.Problem(loss, both, BALL), stream, STATES, x0, 1000)
        assert isinstance(asked, expansion.Tabulated)
        assert (len(asked.plan.kept), asked.plan.affine) == (count, (True, True))
        assert len(tables[2]) == count


@pytest.mark.parametrize(
    ("loss", "constraints", "states", "num_samples", "options"),
    [
        (logistic, only_some, STATES, 1000, {}),
        (logistic, nearly, STATES, 1000, {}),
        (logistic, lambda x, xi: jnp.where(x[0] > 0, both(x, xi), 0), STATES, 1000, {}),
        (logistic, lambda x, xi: x - 0.5, STATES, 1000, {}),  # nothing to gain
        (lambda x, xi: jnp.sum((x - xi["a"][0]) ** 2), lambda x, xi: xi["a"][0, :1] * x[:1], STATES, 1000, {}),
        (squares, both, STATES, 4 * STATES - 1, {}),  # too few visits
        (squares, both, STATES, 1000, {"tabulate": False}),
        (lambda x, xi: squares(x, xi) + _told(x, xi), both, STATES, 1000, {}),
        (squares, lambda x, xi: both(x, xi) / 0, STATES, 1000, {}),  # tables that are not finite
    ],
    ids=["some samples", "nearly affine", "where on x", "small", "rows", "few visits", "off", "effects", "not finite"],
)
def test_no_tables_where_they_would_be_wrong_or_bring_nothing(loss, constraints, states, num_samples, options):
    problem = ed.Problem(loss, constraints, BALL, **options)
    found = tabulated(problem, tree.cast(SOURCE.stream(), KIND), states, jnp.asarray(X0, KIND), num_samples)
    assert found == (problem, None)


def _told(x, xi):
    jax.debug.callback(lambda value: None, x[0])
    return jnp.zeros((), x.dtype)


def test_tables_take_no_more_memory_than_the_data_or_a_little(monkeypatch):
    fixed = jnp.asarray(TABLE["a"].reshape(-1, 3), KIND)
    problem = ed.Problem(lambda x, xi: xi * x[0], lambda x, xi: jnp.mean(fixed @ x * xi)[None], BALL)
    stream, x0 = tree.cast(ed.IIDSource(np.arange(4.0)).stream(), KIND), jnp.asarray(X0, KIND)
    assert tabulated(problem, stream, 4, x0, 1000)[1] is not None
    monkeypatch.setattr(expansion, "SPARE", 0)  # each state has one number, and would get four
    assert tabulated(problem, stream, 4, x0, 1000)[1] is None


def test_what_is_kept_takes_no_more_memory_than_the_data_or_a_little(monkeypatch):
    def of_powers(x, xi):
        powers = jnp.stack([xi["y"] ** k for k in range(2, 12)], axis=1)
        return jnp.mean(jax.nn.softplus(powers @ jnp.concatenate([x, x, x, x[:1]]) / 100))

    stream, x0 = tree.cast(SOURCE.stream(), KIND), jnp.asarray(X0, KIND)
    problem = ed.Problem(of_powers, lambda x, xi: x[:1] - 0.5, BALL)
    assert [leaf.shape for leaf in tabulated(problem, stream, STATES, x0, 1000)[1][2]] == [(3, 200, 10)]
    monkeypatch.setattr(expansion, "SPARE", 0)  # a state has at most five numbers a row, and would get ten
    held = tabulated(problem, stream, STATES, x0, 1000)[1]
    assert held is None or sum(leaf.nbytes for leaf in held[2]) <= sum(leaf.nbytes for leaf in jax.tree.leaves(stream))


@pytest.mark.parametrize(
    ("loss", "constraints", "margin", "algorithm"),
    [
        (squares, in_parts, None, ed.edpp(4)),
        (centred, in_parts, 0.05, ed.edpp(4)),
        pytest.param(squares, only_some, None, ed.edpp(4), marks=pytest.mark.slow),
        pytest.param(squares, nearly, None, ed.edpp(4), marks=pytest.mark.slow),
        pytest.param(of_squares, by_columns, None, ed.rdpp(), marks=pytest.mark.slow),
    ],
    ids=["in parts", "centred, with a margin", "some samples", "nearly affine", "with a memory"],
)
def test_a_run_is_the_same_with_tables_and_without(loss, constraints, margin, algorithm):
    told = {"x0": jnp.asarray(X0, KIND), "num_samples": 200, "record": 3, "margin": margin}
    found = [
        ed.run(algorithm, ed.Problem(loss, constraints, BALL, tabulate=on), SOURCE, **told) for on in (True, False)
    ]
    for name in ("x", "x_mean", "queue", "loss_sum", "constraint_sum"):
        np.testing.assert_allclose(*(getattr(result, name) for result in found), rtol=0, atol=rounded(1e-12))


def test_series_have_no_states_that_come_back_and_paths_are_replayed_with_tables():
    problem, x0 = ed.Problem(squares, both, BALL), jnp.asarray(X0, KIND)
    assert ed.SeriesSource(TABLE).stationary is None  # so that `run` asks for no tables
    stream = tree.cast(SOURCE.stream(), KIND)
    for given in (stream, Replay(stream)):
        found = with_tables(RunSpec(problem, None, given, None), STATES, x0, 100)  # type: ignore[arg-type]
        assert isinstance(found.problem, expansion.Tabulated)
        assert isinstance(found.stream.xi(jnp.int32(0)), Known)


@pytest.mark.slow
def test_sweeps_look_up_too():
    def solution(tau, on):
        problem = ed.Problem(squares, in_parts, BALL, tabulate=on)
        return ed.run(ed.edpp(tau), problem, SOURCE, x0=jnp.asarray(X0, KIND), num_samples=300, record=1).solution

    plain = jnp.stack([solution(tau, False) for tau in (2.0, 4.0)])
    swept = jax.vmap(lambda tau: solution(tau, True))(jnp.array([2.0, 4.0], KIND))
    np.testing.assert_allclose(swept, plain, rtol=0, atol=rounded(1e-13))
    np.testing.assert_allclose(jax.jit(lambda tau: solution(tau, True))(2.0), plain[0], rtol=0, atol=rounded(1e-13))
