from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed

RNG = np.random.default_rng(0)
DIM, STATES, CONSTRAINTS = 4, 5, 3
DATA = {
    "A": RNG.normal(size=(STATES, 6, DIM)),
    "b": RNG.normal(size=(STATES, 6)),
    "G": RNG.normal(size=(STATES, CONSTRAINTS, DIM)),
    "h": RNG.normal(size=(STATES, CONSTRAINTS)) * 0.05 - 0.02,
}
CHAIN = ed.MarkovChain(RNG.dirichlet(np.ones(STATES), size=STATES))
SOURCE = ed.MarkovSource(CHAIN, DATA)


def loss(x, xi):
    return jnp.sum((xi["A"] @ x - xi["b"]) ** 2)


def constraints(x, xi):
    return xi["G"] @ x + xi["h"]


def by_cvxpy(domain, weights=None, every=False, slack=0.0) -> Any:
    """The same problem in another modelling language, with another solver (Clarabel, an interior-point method)."""
    x = cp.Variable(DIM)
    mu, offsets = CHAIN.stationary, DATA["h"] - slack
    weights = mu if weights is None else weights / np.sum(weights)
    objective = sum(w * cp.sum_squares(A @ x - b) for w, A, b in zip(weights, DATA["A"], DATA["b"], strict=True))
    if every:
        rules = [G @ x + h <= 0 for G, h in zip(DATA["G"], offsets, strict=True)]
    else:
        rules = [np.tensordot(mu, DATA["G"], 1) @ x + mu @ offsets <= 0]
    problem = cp.Problem(cp.Minimize(objective), [*rules, *domain(x)])
    # Clarabel's own stopping test is 1e-8 on the residuals, hence 1e-6 on the point below
    problem.solve(solver=cp.CLARABEL)
    return x.value, problem.value, [rule.dual_value for rule in rules]


def with_slack(slack):
    return ed.MarkovSource(CHAIN, {**DATA, "h": DATA["h"] - slack})


LOWER = np.array([-0.1, -0.5, 0.0, -1.0])
DOMAINS = {
    "ball": (ed.Ball(0.3), lambda x: [cp.norm(x, 2) <= 0.3]),
    "wide ball": (ed.Ball(9.0), lambda x: [cp.norm(x, 2) <= 9]),
    "box": (ed.Box(-0.1, 0.2), lambda x: [x >= -0.1, x <= 0.2]),
    "box of arrays": (ed.Box(LOWER, LOWER + 0.4), lambda x: [x >= LOWER, x <= LOWER + 0.4]),
    "simplex": (ed.Simplex(), lambda x: [x >= 0, cp.sum(x) == 1]),
    "entropy": (ed.EntropySimplex(floor=0.05), lambda x: [x >= 0.05, cp.sum(x) == 1]),
    "l1": (ed.L1Ball(0.3), lambda x: [cp.norm(x, 1) <= 0.3]),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_agrees_with_an_independent_solver_on_every_domain(name):
    geometry, domain = DOMAINS[name]
    slack = 1.0 if name in ("simplex", "entropy") else 0.0  # no point of the simplex is feasible without
    reference = ed.solve_reference(ed.Problem(loss, constraints, geometry), with_slack(slack))
    x, value, duals = by_cvxpy(domain, slack=slack)
    np.testing.assert_allclose(reference.x, x, atol=1e-6)
    np.testing.assert_allclose(reference.value, value, atol=1e-7)
    np.testing.assert_allclose(reference.multipliers, duals[0], atol=1e-5)
    assert reference.kkt_residual < 1e-6
    assert reference.constraints.max() <= 1e-8


def test_product_domain_with_a_dict_for_a_point():
    problem = ed.Problem(
        lambda x, xi: loss(jnp.append(x["w"], x["b"]), xi),
        lambda x, xi: constraints(jnp.append(x["w"], x["b"]), xi),
        ed.Product({"w": ed.Ball(0.3), "b": ed.Box(-0.1, 0.1)}),
    )
    reference = ed.solve_reference(problem, SOURCE, {"w": np.zeros(DIM - 1), "b": np.zeros(())})
    x, value, _ = by_cvxpy(lambda x: [cp.norm(x[:3], 2) <= 0.3, cp.abs(x[3]) <= 0.1])
    np.testing.assert_allclose(np.append(reference.x["w"], reference.x["b"]), x, atol=1e-6)
    np.testing.assert_allclose(reference.value, value, atol=1e-7)


def test_realised_weights_change_the_loss_and_not_the_constraints():
    counts = np.array([10, 0, 3, 70, 1])
    problem = ed.Problem(loss, constraints, ed.Ball(0.3))
    reference = ed.solve_reference(problem, SOURCE, loss_weights=counts)
    x, value, _ = by_cvxpy(DOMAINS["ball"][1], weights=counts)
    np.testing.assert_allclose(reference.x, x, atol=1e-6)
    np.testing.assert_allclose(reference.value, value, atol=1e-7)


def test_every_sample_must_be_feasible_for_the_adversarial_benchmark():
    problem = ed.Problem(loss, constraints, ed.Ball(0.3))
    reference = ed.solve_reference(problem, with_slack(0.2), every=True)
    x, value, duals = by_cvxpy(DOMAINS["ball"][1], every=True, slack=0.2)
    np.testing.assert_allclose(reference.x, x, atol=1e-6)
    np.testing.assert_allclose(reference.value, value, atol=1e-7)
    np.testing.assert_allclose(reference.multipliers, np.array(duals), atol=1e-5)
    assert reference.constraints.max() <= 1e-8
    assert value > by_cvxpy(DOMAINS["ball"][1], slack=0.2)[1] + 1e-3  # it is a harder problem


def test_every_sample_of_a_long_series():
    """More samples than are put before the solver at once: x <= the smallest bound."""
    bounds = RNG.uniform(0.2, 1.0, size=5000)
    problem = ed.Problem(lambda x, xi: -x[0], lambda x, xi: x - xi, ed.Box(np.zeros(1), np.ones(1)))
    reference = ed.solve_reference(problem, ed.SeriesSource(bounds), every=True)
    np.testing.assert_allclose(reference.x[0], bounds.min(), atol=1e-7)
    assert np.argmax(reference.multipliers[:, 0]) == np.argmin(bounds)


def test_zip_averages_losses_and_constraints_over_their_own_sources():
    losses = ed.SeriesSource(np.array([[1.0], [2.0], [6.0]]))
    limits = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.3, 0.7]]), np.array([[1.0], [2.0]]))  # mean 1.25
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi[0]) ** 2), lambda x, xi: x - xi[1], ed.Ball(9.0))
    reference = ed.solve_reference(problem, ed.Zip(losses, limits), np.zeros(1))
    np.testing.assert_allclose(reference.x, [1.25], atol=1e-7)
    np.testing.assert_allclose(reference.multipliers, [2 * (3 - 1.25)], atol=1e-6)


def test_a_float32_user_gets_a_float64_reference():
    import jax

    with jax.enable_x64(False):
        data = np.array([[1.0, 2.0], [3.0, 0.0]], np.float32)
        problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 1, ed.Ball(9.0))
        reference = ed.solve_reference(problem, ed.IIDSource(data))
    assert reference.x.dtype == np.float64
    np.testing.assert_allclose(reference.x, [1.0, 1.0], atol=1e-9)


def test_conflicting_constraints_are_reported_with_the_least_violation_found():
    problem = ed.Problem(lambda x, xi: x[0] ** 2, lambda x, xi: jnp.stack([x[0] - xi, 0.5 - x[0]]), ed.Ball(1.0))
    with pytest.raises(ValueError, match="no feasible point found"):
        ed.solve_reference(problem, ed.IIDSource(np.array([0.0, 0.1])), np.zeros(1))


def test_a_shape_that_cannot_be_told_is_asked_for():
    problem = ed.Problem(lambda x, xi: (x[0] - xi) ** 2 + x[1] ** 2, lambda x, xi: x[:1] - 1, ed.Ball(1.0))
    with pytest.raises(ValueError, match="x0 must be given"):
        ed.solve_reference(problem, ed.IIDSource(np.array([1.0, 2.0])))


def test_a_length_that_slicing_would_accept_is_not_guessed():
    """x[2] of a vector of length 2 is no error in JAX; a guess of 2 would give a wrong optimum in silence."""
    problem = ed.Problem(lambda x, xi: (x[:2] @ xi + x[2] - 1) ** 2, lambda x, xi: x[:1] - 1, ed.Ball(1.0))
    with pytest.raises(ValueError, match="x0 must be given"):
        ed.solve_reference(problem, ed.IIDSource(np.eye(2)))


@pytest.mark.parametrize("weights", [[1, 2], [-1, 1, 1, 1, 1], [0] * 5, [np.nan] * 5])
def test_bad_loss_weights_are_refused(weights):
    with pytest.raises(ValueError, match="loss_weights must be 5 weights"):
        ed.solve_reference(ed.Problem(loss, constraints, ed.Ball(1.0)), SOURCE, loss_weights=weights)


@pytest.mark.parametrize("factor", [1e-9, 1e6])
def test_the_units_of_loss_and_constraints_do_not_matter(factor):
    problem = ed.Problem(lambda x, xi: factor * loss(x, xi), lambda x, xi: constraints(x, xi) / factor, ed.Ball(0.3))
    plain = ed.solve_reference(ed.Problem(loss, constraints, ed.Ball(0.3)), SOURCE)
    scaled = ed.solve_reference(problem, SOURCE)
    np.testing.assert_allclose(scaled.x, plain.x, atol=1e-7)
    np.testing.assert_allclose(scaled.multipliers, factor**2 * plain.multipliers, rtol=1e-5)


def test_a_kink_that_the_solver_starts_on_is_not_taken_for_an_optimum():
    source = ed.IIDSource(np.array([[1.0, 2.0], [3.0, 0.0]]))
    kinked = ed.Problem(
        lambda x, xi: jnp.linalg.norm(x - xi + jnp.array([1.0, 2.0])), lambda x, xi: x[:1] - xi[:1] / 2, ed.Ball(9.0)
    )
    with pytest.raises(ValueError, match="KKT residual of nan"):
        ed.solve_reference(kinked, source)  # its gradient at 0 is 0 / 0
    assert ed.solve_reference(kinked, source, np.array([0.5, 0.5])).kkt_residual < 1e-6


def test_a_zip_loss_that_reads_the_other_source_is_refused():
    source = ed.Zip(ed.SeriesSource(np.ones(3)), ed.IIDSource(np.ones(2)))
    crossed = ed.Problem(lambda x, xi: (x[0] - xi[0] - xi[1]) ** 2, lambda x, xi: x - xi[1], ed.Ball(1.0))
    with pytest.raises(ValueError, match=r"loss reads xi\[1\], but in a Zip it may read xi\[0\] only"):
        ed.solve_reference(crossed, source, np.zeros(1))
    crossed = ed.Problem(lambda x, xi: (x[0] - xi[0]) ** 2, lambda x, xi: x - xi[0], ed.Ball(1.0))
    with pytest.raises(ValueError, match=r"constraints reads xi\[0\]"):
        ed.solve_reference(crossed, source, np.zeros(1))
