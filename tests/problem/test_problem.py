from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import cases
import ergodrift as ed
from digits import rounded


def closed_form(x: Any, xi: Any) -> tuple[Any, ...]:
    """loss, its gradient, constraints and their Jacobian of the shared problem, by hand."""
    residual = xi["A"] @ x - xi["b"]
    away = x - xi["o"]
    return (
        residual @ residual / 2 + xi["c"] @ x,
        xi["A"].T @ residual + xi["c"],
        np.concatenate([xi["a"] @ x - xi["e"], np.sum(away**2, axis=1) - xi["rho"]]),
        np.concatenate([xi["a"], 2 * away]),
    )


# Two constraints in five dimensions go through reverse mode, eight through forward mode.
@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize(
    ("geometry", "x"),
    [
        (ed.Ball(2.0), np.zeros(5)),
        (ed.Product({"w": ed.Ball(2.0), "b": ed.Box(-1.0, 1.0)}), {"w": np.zeros((2, 2)), "b": np.zeros(())}),
    ],
    ids=["array", "mapping"],
)
def test_feedback_agrees_with_the_closed_form(geometry, x, pairs):
    problem = ed.Problem(cases.loss, cases.constraints, geometry)
    unravel = ravel_pytree(x)[1]

    @settings(cases.deterministic, max_examples=20)
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        rng = np.random.default_rng(seed)
        flat = rng.normal(size=5)
        xi = jax.tree.map(lambda leaf: leaf[0], cases.random_data(rng, 1, 5, pairs))
        loss, loss_grad, constraints, jac = problem.feedback(unravel(jnp.asarray(flat)), xi)[:4]
        assert jax.tree.structure(loss_grad) == jax.tree.structure(jac) == jax.tree.structure(x)
        rows = jax.vmap(lambda row: ravel_pytree(row)[0])(jac)
        actual = (loss, ravel_pytree(loss_grad)[0], constraints, rows)
        for got, wanted in zip(actual, closed_form(flat, xi), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=rounded(1e-12), atol=rounded(1e-12))

    check()


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("count", [2, 6])
def test_feedback_agrees_with_finite_differences(count):
    # Neither function is a polynomial, and the sample is a pytree of its own.
    def loss(x: Any, xi: Any) -> Any:
        return jnp.log(jnp.sum(jnp.exp(x * xi["u"])))

    def constraints(x: Any, xi: Any) -> Any:
        return jnp.sqrt(1 + (xi["V"][:count] @ x) ** 2) - 2

    rng = np.random.default_rng(0)
    xi = {"u": rng.normal(size=3), "V": rng.normal(size=(6, 3))}
    x, h = rng.normal(size=3), 1e-5
    feedback = ed.Problem(loss, constraints, ed.Ball(9.0)).feedback(x, xi)
    for value, slope, function in [
        (feedback.loss, feedback.loss_grad, loss),
        (feedback.constraints, feedback.constraint_jac, constraints),
    ]:
        np.testing.assert_allclose(value, function(x, xi), rtol=1e-14)
        ahead, behind = (np.array([function(x + s * h * e, xi) for e in np.eye(3)]) for s in (1, -1))
        # Central differences are off by h^2 and by rounding / h, both about 1e-10 here.
        np.testing.assert_allclose(slope, ((ahead - behind) / (2 * h)).T, atol=1e-9)


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("pairs", [1, 4], ids=["reverse", "forward"])
def test_feedback_has_the_dtype_of_the_point_whatever_that_of_the_data(pairs):
    xi = jax.tree.map(lambda leaf: leaf[0], cases.random_data(np.random.default_rng(0), 1, 5, pairs))
    problem = ed.Problem(cases.loss, cases.constraints, ed.Ball(2.0))
    for dtype in (jnp.float32, jnp.float64):
        feedback = problem.feedback(jnp.zeros(5, dtype), xi)
        assert {leaf.dtype for leaf in jax.tree.leaves(feedback)} == {jnp.dtype(dtype)}


@pytest.mark.x64("it asks for float64 itself")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_loss_may_be_a_plain_number(dtype):
    problem = ed.Problem(lambda x, xi: 2.5, lambda x, xi: x[:1], ed.Ball(2.0))
    feedback = problem.feedback(jnp.ones(2, dtype), jnp.ones(2, dtype))
    assert feedback.loss == 2.5
    assert feedback.loss.dtype == dtype
    np.testing.assert_array_equal(feedback.loss_grad, [0, 0])


def test_constraints_that_do_not_depend_on_the_point_have_zero_gradients():
    problem = ed.Problem(lambda x, xi: jnp.sum(x * xi), lambda x, xi: xi[:1], ed.Ball(2.0))
    feedback = problem.feedback(jnp.zeros(2), jnp.array([3.0, 4.0]))
    np.testing.assert_array_equal(feedback.constraints, [3])
    np.testing.assert_array_equal(feedback.constraint_jac, [[0, 0]])


def quadratic(x: Any, xi: Any) -> Any:
    return jnp.sum((x - xi) ** 2)


def linear(x: Any, xi: Any) -> Any:
    return x[:1] - 0.5


def broken(x: Any, xi: Any) -> Any:
    raise RuntimeError("the sky fell")


@pytest.mark.parametrize(
    ("constraints", "count"), [(linear, 1), (lambda x, xi: x - xi, 2), (lambda x, xi: jnp.outer(x, xi).ravel(), 4)]
)
def test_check_counts_the_constraints(constraints, count):
    assert ed.Problem(quadratic, constraints, ed.Ball(2.0)).check(jnp.zeros(2), jnp.ones(2)) == count


@pytest.mark.parametrize(
    ("loss", "constraints", "message"),
    [
        (lambda x, xi: x - xi, linear, "loss must return a scalar, got shape (2,); take a sum or a mean"),
        (lambda x, xi: jnp.sum(x)[None], linear, "loss must return a scalar, got shape (1,)"),
        (lambda x, xi: jnp.sum(x > 0), linear, "loss(x, xi) must return one floating-point array, got"),
        (lambda x, xi: (jnp.sum(x), x), linear, "loss(x, xi) must return one floating-point array, got"),
        (broken, linear, "loss(x, xi) fails for shapes x (2,), xi (2,): the sky fell"),
        (lambda x, xi: x @ jnp.ones(3), linear, "loss(x, xi) fails for shapes x (2,), xi (2,)"),
        (quadratic, lambda x, xi: x[0], "one entry per constraint, got shape (); for a single constraint return"),
        (quadratic, lambda x, xi: x[None], "a vector with one entry per constraint, got shape (1, 2)"),
        (quadratic, lambda x, xi: x[:0], "a vector with one entry per constraint, got shape (0,)"),
        (quadratic, lambda x, xi: jnp.ones(2, int), "constraints(x, xi) must return one floating-point array, got"),
        (quadratic, lambda x, xi: [x[0], x[1]], "constraints(x, xi) must return one floating-point array, got"),
        (quadratic, lambda x, xi: None, "constraints(x, xi) must return one floating-point array, got"),
        (quadratic, lambda x, xi: [x[0], x[1]], "got list [(), ()]; write jnp.stack([...])"),
        (quadratic, lambda x, xi: x > 0, "got bool; write .astype(x.dtype)"),
        (lambda x, xi: {"price": 1.0}["demand"] * x[0], linear, "fails for shapes x (2,), xi (2,): no 'demand'"),
        (lambda x, xi: x[0] if x[0] > 0 else x[1], linear, "write jnp.where(condition, a, b) in the place of `if`"),
        (lambda x, xi: np.maximum(x, 0.0).sum(), linear, "write jnp.maximum in the place of np.maximum"),
        (quadratic, broken, "constraints(x, xi) fails for shapes x (2,), xi (2,): the sky fell"),
    ],
)  # fmt: skip
def test_check_says_which_function_does_not_fit(loss, constraints, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ed.Problem(loss, constraints, ed.Ball(2.0)).check(jnp.zeros(2), jnp.ones(2))


def test_a_failure_inside_a_function_keeps_its_cause():
    with pytest.raises(ValueError, match="the sky fell") as caught:
        ed.Problem(broken, linear, ed.Ball(2.0)).check(jnp.zeros(2), jnp.ones(2))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_check_asks_the_domain():
    with pytest.raises(ValueError, match="Simplex needs a point with at least two entries, got 1"):
        ed.Problem(quadratic, linear, ed.Simplex()).check(jnp.ones(1), jnp.ones(1))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((3.0, linear, ed.Ball(1.0)), "loss must be a function of (x, xi), got 3.0"),
        ((quadratic, [1, 2], ed.Ball(1.0)), "constraints must be a function of (x, xi), got [1, 2]"),
        ((quadratic, linear, 5.0), "geometry must be a Geometry such as Ball(5.0), got 5.0"),
        ((quadratic, linear, ed.Ball), "geometry must be a Geometry such as Ball(5.0), got <class"),
    ],
)
def test_a_problem_of_the_wrong_parts_is_refused(parts, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        ed.Problem(*parts)


# Functions with rules of their own, or without one of the two ways to differentiate.


@jax.custom_vjp
def doubled(x):
    return 2 * x


doubled.defvjp(lambda x: (doubled(x), None), lambda _, out: (2 * out,))


@jax.custom_jvp
def tripled(x):
    return 3 * x


tripled.defjvp(lambda primals, tangents: (tripled(*primals), 3 * tangents[0]))


@jax.custom_vjp
def nested(x):
    return doubled(x) * 2


nested.defvjp(lambda x: (nested(x), None), lambda _, out: (4 * out,))


def halving(x):
    """x / 8 by a loop whose length is found out on the way: forward mode alone goes through it."""
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] / 2), (0, x))[1]


RULES = {
    "custom_vjp": (doubled, 2.0),
    "custom_jvp": (tripled, 3.0),
    "nested": (nested, 4.0),
    "both": (lambda x: doubled(tripled(x)), 6.0),
    "checkpoint": (jax.checkpoint(lambda x: doubled(x) * 1.5), 3.0),
    "jit": (jax.jit(lambda x: doubled(x)), 2.0),
    "scan": (lambda x: jax.lax.scan(lambda total, _: (total + doubled(x), None), 0 * x, None, length=3)[0], 6.0),
    "vmap": (lambda x: jax.vmap(doubled)(x), 2.0),
    "cond": (lambda x: jax.lax.cond(x[0] > -9, doubled, tripled, x), 2.0),
    "while": (halving, 0.125),
}


@pytest.mark.parametrize("count", [1, 2, 5], ids=["fewer", "as many", "more constraints than dimensions"])
@pytest.mark.parametrize("rule", RULES)
def test_constraints_may_have_rules_of_their_own(rule, count):
    function, slope = RULES[rule]
    matrix = np.random.default_rng(0).normal(size=(count, 2))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: matrix @ function(x) - 1, ed.Ball(2.0))
    x = jnp.array([0.3, -0.2])
    feedback = problem.feedback(x, jnp.ones(2))
    np.testing.assert_allclose(feedback.constraints, matrix @ (slope * x) - 1, rtol=rounded(1e-14))
    np.testing.assert_allclose(feedback.constraint_jac, slope * matrix, rtol=rounded(1e-14))


def test_a_run_and_its_reference_with_more_such_constraints_than_dimensions():
    normals = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])
    own, plain = (
        ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi, f=f: normals @ f(x) - 0.8, ed.Ball(2.0))
        for f in (doubled, lambda x: 2 * x)
    )
    source = ed.IIDSource(np.array([[1.0, 0.5], [0.5, 1.0]]))
    runs = [ed.run(ed.dpp(), problem, source, x0=np.zeros(2), num_samples=300) for problem in (own, plain)]
    np.testing.assert_allclose(runs[0].solution, runs[1].solution, rtol=1e-12)
    references = [ed.solve_reference(problem, source, np.zeros(2)).x for problem in (own, plain)]
    np.testing.assert_allclose(*references, atol=1e-7)


def test_where_neither_way_goes_the_first_error_is_seen():
    def neither(x):
        return doubled(halving(x))

    problem = ed.Problem(lambda x, xi: jnp.sum(x**2), lambda x, xi: jnp.ones((5, 2)) @ neither(x), ed.Ball(2.0))
    with pytest.raises(TypeError, match="custom_vjp"):
        problem.feedback(jnp.zeros(2), jnp.ones(2))
