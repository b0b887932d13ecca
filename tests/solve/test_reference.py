from typing import Any

import cvxpy as cp
import hypothesis
import hypothesis.strategies as st
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
    reference = ed.solve_reference(problem, with_slack(0.2), per_sample=True)
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
    reference = ed.solve_reference(problem, ed.SeriesSource(bounds), per_sample=True)
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


# ---- any units, any domain ----

CENTRES = RNG.normal(size=(3, 3))


def stretched(x, xi):
    """The loss of a point in other units: xi["unit"] many of them make one."""
    return xi["loss"] * jnp.sum((x / xi["unit"] - xi["c"]) ** 4 + (x / xi["unit"] - xi["c"]) ** 2)


def limits(x, xi):
    y = x / xi["unit"]
    return xi["rows"] * jnp.stack([y[0] + y[1] - 0.2, y @ y - 1.0, y[2] - y[0] - 0.1])


def in_units(unit, loss_factor, factors):
    rows = {"c": CENTRES, "unit": np.full(3, unit), "loss": np.full(3, loss_factor), "rows": np.tile(factors, (3, 1))}
    return ed.solve_reference(ed.Problem(stretched, limits, ed.Ball(2.0 * unit)), ed.SeriesSource(rows), np.zeros(3))


@hypothesis.settings(deadline=None, max_examples=15, derandomize=True)
@hypothesis.given(*[st.floats(-6.0, 6.0)] * 2, st.tuples(*[st.floats(-8.0, 8.0)] * 3))
def test_every_unit_gives_the_same_answer(unit, loss_factor, factors):
    """x, the loss and each constraint in units of their own, from 1e-8 to 1e8, all at once."""
    plain = in_units(1.0, 1.0, np.ones(3))
    unit, loss_factor, factors = 10.0**unit, 10.0**loss_factor, 10.0 ** np.array(factors)
    scaled = in_units(unit, loss_factor, factors)
    np.testing.assert_allclose(scaled.x / unit, plain.x, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(scaled.value / loss_factor, plain.value, rtol=1e-9)
    np.testing.assert_allclose(scaled.multipliers * factors / loss_factor, plain.multipliers, rtol=1e-6, atol=1e-9)
    assert scaled.kkt_residual < 1e-9


@pytest.mark.parametrize("radius", [1e-3, 10.0, 1e4, 1e6])
@pytest.mark.parametrize("seed", range(5))
def test_a_domain_of_any_size_is_solved(radius, seed):
    """On large balls the optimum is a point near 0, in no way special among the others of the domain."""
    rng = np.random.default_rng(seed)
    A, b, G = rng.normal(size=(8, DIM)), rng.normal(size=8), rng.normal(size=(3, DIM))
    problem = ed.Problem(
        lambda x, xi: jnp.sum((xi["A"] @ x - xi["b"]) ** 2), lambda x, xi: xi["G"] @ x - 0.05, ed.Ball(radius)
    )
    reference = ed.solve_reference(problem, ed.IIDSource({"A": A[None], "b": b[None], "G": G[None]}), np.zeros(DIM))
    x = cp.Variable(DIM)
    rules: Any = [G @ x <= 0.05, cp.norm(x / radius) <= 1]
    best: Any = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), rules).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(reference.value, best, rtol=1e-6)
    assert reference.constraints.max() <= 1e-9 * radius
    assert reference.gap <= 1e-8 * reference.value


@pytest.mark.parametrize("radius", [10.0, 1e4, 1e6])
def test_a_loss_that_overflows_over_most_of_its_domain(radius):
    """exp(x) - 2 x has its optimum at log 2; at most points of a large ball it is infinite."""
    problem = ed.Problem(lambda x, xi: jnp.sum(jnp.exp(x * xi) - 2 * x), lambda x, xi: x[:1] - 0.3, ed.Ball(radius))
    reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))))
    np.testing.assert_allclose(reference.x, [0.3, np.log(2)], atol=1e-9)
    np.testing.assert_allclose(reference.multipliers, [2 - np.exp(0.3)], atol=1e-9)


# ---- kinks ----


def test_a_hinge_is_solved_with_a_proven_gap():
    rng = np.random.default_rng(5)
    model = ed.LinearModel("hinge", ed.Ball(5.0))
    features = rng.normal(size=(2, 60, 4))
    labels = np.sign(features @ np.ones(4) + rng.normal(size=(2, 60)))
    normals = rng.normal(size=(2, 1, 4))
    source = ed.IIDSource(model.data(list(features), list(labels), normals=normals, limits=[-0.1]))
    reference = ed.solve_reference(model, source, np.zeros(4))
    x = cp.Variable(4)
    margins = cp.multiply(labels.ravel(), features.reshape(-1, 4) @ x)
    rule: Any = normals.mean(axis=0) @ x <= -0.1
    rules: Any = [rule, cp.norm(x) <= 5]
    best: Any = cp.Problem(cp.Minimize(cp.sum(cp.pos(1 - margins)) / 120), rules).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(reference.value, best, rtol=1e-7)
    np.testing.assert_allclose(reference.multipliers, rule.dual_value, atol=1e-5)
    assert reference.gap <= 1e-7 * reference.value
    assert reference.constraints.max() <= 1e-9


def test_a_conditional_value_at_risk_on_a_product_of_domains():
    """min over w and t of t + E[(loss - t)_+] / 0.1, with a return that must be reached: kinks at every sample."""
    rng = np.random.default_rng(6)
    returns = 0.2 * rng.normal(size=(80, 4)) + [0.0, 0.02, 0.05, 0.1]
    problem = ed.Problem(
        lambda x, xi: x["t"] + jnp.maximum(-xi @ x["w"] - x["t"], 0) / 0.1,
        lambda x, xi: jnp.stack([0.085 - xi @ x["w"]]),
        ed.Product({"w": ed.Simplex(), "t": ed.Box(-3.0, 3.0)}),
    )
    reference = ed.solve_reference(problem, ed.SeriesSource(returns), {"w": np.full(4, 0.25), "t": np.zeros(())})
    w, t = cp.Variable(4), cp.Variable()
    rule: Any = returns.mean(axis=0) @ w >= 0.085
    risk = t + cp.sum(cp.pos(-returns @ w - t)) / 8
    rules: Any = [rule, w >= 0, cp.sum(w) == 1]
    best: Any = cp.Problem(cp.Minimize(risk), rules).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(reference.value, best, rtol=1e-6)
    np.testing.assert_allclose(reference.multipliers, [rule.dual_value], rtol=1e-4)
    assert 0 <= reference.gap <= 1e-6 * abs(reference.value)


def test_kinks_in_constraints_beside_curves():
    """min |x - c|^2 with |x_0| + |x_1| <= 1/2 and max(x_0, x_1) <= 0.3: in closed form for c = (1, 0.1)."""
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi) ** 2),
        lambda x, xi: jnp.stack([jnp.sum(jnp.abs(x)) - 0.5, jnp.max(x) - 0.3]),
        ed.Ball(3.0),
    )
    reference = ed.solve_reference(problem, ed.IIDSource(np.array([[1.0, 0.1]])))
    np.testing.assert_allclose(reference.x, [0.3, 0.1], atol=1e-6)
    np.testing.assert_allclose(reference.multipliers, [0.0, 1.4], atol=1e-5)
    assert reference.gap <= 1e-6 * reference.value


def test_a_function_with_a_reverse_rule_of_its_own():
    import jax

    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, slope: (2 * x * slope,))
    problem = ed.Problem(lambda x, xi: jnp.sum(square(x - xi)), lambda x, xi: x[:1] - 0.3, ed.Ball(3.0))
    reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))))
    np.testing.assert_allclose(reference.x, [0.3, 1.0], atol=1e-9)


KINKED = {  # (loss of a prediction and a label, the same for cvxpy)
    "hinge": (lambda m, y: jnp.maximum(1 - y * m, 0), lambda m, y: cp.pos(1 - cp.multiply(y, m))),
    "absolute": (lambda m, y: jnp.abs(y - m), lambda m, y: cp.abs(y - m)),
    "quantile": (
        lambda m, y: jnp.maximum(0.9 * (y - m), 0.1 * (m - y)),
        lambda m, y: cp.maximum(0.9 * (y - m), 0.1 * (m - y)),
    ),
    "largest": (
        lambda m, y: jnp.max(jnp.stack([m - y, 0.3 - 2 * m, 0.1 * m])),
        lambda m, y: cp.maximum(m - y, 0.3 - 2 * m, 0.1 * m),
    ),
}
BOUNDED = {
    "line": (lambda x, xi: jnp.stack([x @ xi["g"] - 0.05]), lambda x, g: [g @ x <= 0.05]),
    "disc": (lambda x, xi: jnp.stack([jnp.sum(x**2) - 0.1]), lambda x, g: [cp.sum_squares(x) <= 0.1]),
    "diamond": (lambda x, xi: jnp.stack([jnp.sum(jnp.abs(x)) - 0.3]), lambda x, g: [cp.norm1(x) <= 0.3]),
    "corner": (lambda x, xi: jnp.stack([jnp.max(x) - 0.05]), lambda x, g: [cp.max(x) <= 0.05]),
}


def kinked(loss_name, rule_name, radius, dim=3, count=40):
    """A reference, and the value that another solver finds on a ball of reasonable size."""
    rng = np.random.default_rng(dim)
    features = rng.normal(size=(count, dim))
    labels = np.sign(features @ np.ones(dim) + rng.normal(size=count))
    normals = rng.normal(size=(count, dim)) + 1.0
    (loss, its_loss), (rules, its_rules) = KINKED[loss_name], BOUNDED[rule_name]
    problem = ed.Problem(lambda x, xi: loss(xi["a"] @ x, xi["y"]), rules, ed.Ball(radius))
    reference = ed.solve_reference(problem, ed.SeriesSource({"a": features, "y": labels, "g": normals}), np.zeros(dim))
    x = cp.Variable(dim)
    bounds: Any = [*its_rules(x, normals.mean(axis=0)), cp.norm(x) <= min(radius, 50.0)]
    best: Any = cp.Problem(cp.Minimize(cp.sum(its_loss(features @ x, labels)) / count), bounds).solve(cp.CLARABEL)
    return reference, best


@pytest.mark.parametrize("radius", [1e-3, 1.0, 1e4, 1e6])
@pytest.mark.parametrize("rule_name", ["disc", "corner"])
@pytest.mark.parametrize("loss_name", ["absolute", "largest"])
def test_kinks_on_a_domain_of_any_size(loss_name, rule_name, radius):
    """The gap is small beside the loss, not beside what the loss could be at the far end of the domain."""
    reference, best = kinked(loss_name, rule_name, radius)
    np.testing.assert_allclose(reference.value, best, rtol=1e-6)
    assert 0 <= reference.gap <= 1e-6 * reference.value
    assert reference.constraints.max() <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("dim", [5])
@pytest.mark.parametrize("radius", [1e-3, 1e5])
@pytest.mark.parametrize("rule_name", BOUNDED)
@pytest.mark.parametrize("loss_name", KINKED)
def test_every_kink_on_a_domain_of_any_size(loss_name, rule_name, radius, dim):
    reference, best = kinked(loss_name, rule_name, radius, dim, 100)
    np.testing.assert_allclose(reference.value, best, rtol=2e-6)
    assert 0 <= reference.gap <= 1e-6 * reference.value
    assert reference.constraints.max() <= 1e-9


@pytest.mark.parametrize("width", [1.0, 1e5])
def test_a_risk_whose_threshold_has_a_wide_range_of_its_own(width):
    """A product of a simplex and a long interval: entries of very different sizes in one point."""
    returns = 0.2 * np.random.default_rng(6).normal(size=(40, 3)) + [0.0, 0.02, 0.05]
    problem = ed.Problem(
        lambda x, xi: x["t"] + jnp.maximum(-xi @ x["w"] - x["t"], 0) / 0.1,
        lambda x, xi: jnp.stack([jnp.sum(x["w"] ** 2) - 0.4]),
        ed.Product({"w": ed.Simplex(), "t": ed.Box(-width, width)}),
    )
    reference = ed.solve_reference(problem, ed.SeriesSource(returns), {"w": np.full(3, 1 / 3), "t": np.zeros(())})
    w, t = cp.Variable(3), cp.Variable()
    rules: Any = [cp.sum_squares(w) <= 0.4, w >= 0, cp.sum(w) == 1]
    best: Any = cp.Problem(cp.Minimize(t + cp.sum(cp.pos(-returns @ w - t)) / 4), rules).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(reference.value, best, rtol=1e-6)
    assert 0 <= reference.gap <= 1e-6 * abs(reference.value)


def test_a_gap_that_is_not_small_is_said(monkeypatch):
    from ergodrift.solve import convex

    monkeypatch.setattr(convex, "FINE", 1e-4)
    monkeypatch.setattr(convex, "CLOSE", 1e-4)
    with pytest.warns(UserWarning, match=r"proven to be within .* of the optimum only, its loss being"):
        reference, best = kinked("absolute", "disc", 1e4)
    assert reference.gap > 1e-6 * reference.value
    assert reference.value - reference.gap <= best <= reference.value + 1e-8


# ---- without Slater's condition ----


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1e-6, 1e6), (1e6, 1e-6), (1e6, 1e6)])
@pytest.mark.parametrize("others", [False, True])
def test_an_equation_written_as_two_inequalities(factors, others):
    """lambda_0 - lambda_1 = 1.4 in units of one: of all pairs (1.4, 0) is the smallest."""
    rows = np.array([*factors, 1.0, 1.0])

    def rules(x, xi):
        pair = jnp.stack([x[0] - 0.3, 0.3 - x[0]])
        return rows[: 4 if others else 2] * (jnp.concatenate([pair, x[1:2] - 0.5, x[:1] - 5]) if others else pair)

    problem = ed.Problem(lambda x, xi: jnp.sum((x - 1) ** 2), rules, ed.Ball(2.0))
    reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))), np.zeros(2))
    x, multipliers = ([0.3, 0.5], [1.4, 0.0, 1.0, 0.0]) if others else ([0.3, 1.0], [1.4, 0.0])
    np.testing.assert_allclose(reference.x, x, atol=1e-8)
    np.testing.assert_allclose(reference.value, 0.74 if others else 0.49, rtol=1e-9)
    np.testing.assert_allclose(reference.multipliers * rows[: len(multipliers)], multipliers, atol=1e-6)
    assert "those returned are the smallest" in reference.note


@pytest.mark.parametrize("radius", [2.0, 1e4])
def test_an_equation_beside_kinks(radius):
    """|x_0 - 1| falls at rate 1 where x_0 = 0.3, so (1, 0) is the smallest pair of multipliers."""
    problem = ed.Problem(
        lambda x, xi: jnp.sum(jnp.abs(x - 1)), lambda x, xi: jnp.stack([x[0] - 0.3, 0.3 - x[0]]), ed.Ball(radius)
    )
    reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))), np.zeros(2))
    np.testing.assert_allclose(reference.x, [0.3, 1.0], atol=1e-6)
    np.testing.assert_allclose(reference.multipliers, [1.0, 0.0], atol=1e-5)
    assert "those returned are the smallest" in reference.note


def test_where_many_multipliers_fit_the_smallest_are_returned_and_a_note_says_why():
    problem = ed.Problem(
        lambda x, xi: x[0] + (x[1] - 1) ** 2, lambda x, xi: jnp.stack([x[0] - 0.1, 0.1 - x[0]]), ed.Box(-1.0, 0.5)
    )
    reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))), np.zeros(2))
    np.testing.assert_allclose(reference.x, [0.1, 0.5], atol=1e-9)
    np.testing.assert_allclose(reference.multipliers, [0.0, 1.0], atol=1e-6)
    assert "Slater's condition fails), because of constraints 0, 1" in reference.note


def test_where_no_multipliers_exist_a_warning_says_so():
    """x_0^2 <= 0 leaves x_0 = 0, where the gradient of the constraint is 0 and that of the loss is not."""
    problem = ed.Problem(lambda x, xi: x[0] + x[1] ** 2, lambda x, xi: x[:1] ** 2, ed.Ball(1.0))
    with pytest.warns(UserWarning, match=r"Slater's condition fails.*no multipliers exist.*loosen"):
        reference = ed.solve_reference(problem, ed.IIDSource(np.ones((2, 2))), np.zeros(2))
    np.testing.assert_allclose(reference.x, [0.0, 0.0], atol=1e-4)
    assert reference.note


def test_a_sound_problem_has_no_note():
    assert ed.solve_reference(ed.Problem(loss, constraints, ed.Ball(0.3)), SOURCE).note == ""


def test_rows_in_chunks_are_all_counted_once(monkeypatch):
    from ergodrift.solve import derivatives as module

    data = RNG.normal(size=(1000, 2))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 0.01 * xi, ed.Ball(1.0))
    whole = ed.solve_reference(problem, ed.SeriesSource(data))
    monkeypatch.setattr(module, "CHUNK", 300)  # 150 rows at a time: six chunks and a part of a seventh
    again = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 0.01 * xi, ed.Ball(1.0))
    np.testing.assert_allclose(ed.solve_reference(again, ed.SeriesSource(data)).x, whole.x, atol=1e-12)


def test_a_long_solve_shows_its_progress_on_a_terminal(monkeypatch):
    import io
    import sys

    from ergodrift._core import progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    ed.solve_reference(ed.Problem(loss, constraints, ed.Ball(0.3)), SOURCE)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "solve_reference" in shown
    assert "12/12 digits" in shown
    assert shown.endswith("\r\033[K")
