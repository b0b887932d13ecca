"""Feasibility: min-max values known in closed form or from another solver, and queues of runs that cannot succeed."""

import dataclasses
from typing import Any

import cvxpy as cp
import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.solve.feasibility import queue_evidence

SOURCE = ed.IIDSource(np.array([[1.0, -1.0], [-1.0, 1.0]]))  # mean zero


def problem(constraints, domain=None):
    return ed.Problem(lambda x, xi: jnp.sum((x - 1) ** 2), constraints, domain or ed.Ball(2.0))


def test_two_contradictory_halfspaces_on_a_ball():
    """a.x >= 1 and a.x <= -1/2 with |a| = 2: the best worst violation is half the distance of the levels."""
    a = np.array([1.2, 1.6])
    found = ed.feasibility(problem(lambda x, xi: jnp.stack([1 - a @ x, a @ x + 0.5 + xi[0]])), SOURCE, np.zeros(2))
    assert found.verdict == "infeasible"
    assert found.worst == pytest.approx(0.75, abs=1e-9)
    assert a @ found.x == pytest.approx(0.25, abs=1e-9)
    np.testing.assert_allclose(found.multipliers, [0.5, 0.5], atol=1e-9)
    assert found.conflict == (0, 1)
    assert "constraints 0 and 1 conflict" in str(found)
    assert "at least 0.75" in str(found)


def test_a_halfspace_that_misses_the_ball():
    """x_1 >= 3 on a ball of radius 2: the nearest point is 1 away; no other constraint is to blame."""
    found = ed.feasibility(problem(lambda x, xi: jnp.stack([x[1] - 5, 3 - x[0] + xi[1]])), SOURCE, np.zeros(2))
    assert found.worst == pytest.approx(1.0, abs=1e-8)
    np.testing.assert_allclose(found.x, [2.0, 0.0], atol=1e-5)
    assert found.conflict == (1,)
    assert "constraint 1 cannot be met" in str(found)


def test_of_three_constraints_two_conflict_and_one_is_only_violated_with_them():
    """x >= 1 and x <= -1 conflict; y <= -0.5 alone can be met, whatever x is."""
    limits = problem(lambda x, xi: jnp.stack([1 - x[0], x[1] + 0.5, x[0] + 1]))
    found = ed.feasibility(limits, SOURCE, np.array([0.3, 1.0]))
    assert found.conflict == (0, 2)
    assert found.worst == pytest.approx(1.0, abs=1e-9)
    assert found.multipliers[1] == pytest.approx(0.0, abs=1e-6)


def test_a_conflict_is_reduced_until_every_smaller_one_can_be_met():
    """x >= 1 twice and x <= -1: the multipliers may share the duplicate, the conflict names it once."""
    found = ed.feasibility(problem(lambda x, xi: jnp.stack([1 - x[0], 1 - x[0], x[0] + 1])), SOURCE, np.zeros(2))
    assert found.conflict in ((0, 2), (1, 2))


def test_slaters_margin_of_a_ball_inside_a_ball():
    """||x - o||^2 <= 0.49 is met best at o, by 0.49; the second constraint leaves that alone."""
    o = np.array([0.5, -0.5])
    limits = problem(lambda x, xi: jnp.stack([jnp.sum((x - o) ** 2) - 0.49, x[0] - 9]))
    found = ed.feasibility(limits, SOURCE, np.zeros(2))
    assert found.verdict == "slater"
    assert found.margin == pytest.approx(0.49, abs=1e-9)
    np.testing.assert_allclose(found.x, o, atol=1e-4)  # the square root of the solver's accuracy in the value
    assert found.conflict == ()
    assert "margin 0.49" in str(found)


def test_a_problem_that_is_feasible_only_just():
    found = ed.feasibility(problem(lambda x, xi: jnp.stack([x[0] + xi[0]]), ed.Box(0.0, 1.0)), SOURCE, np.full(2, 0.5))
    assert found.verdict == "edge"
    assert "cannot tell from 0" in str(found)


@pytest.mark.parametrize("seed", range(4))
def test_linear_constraints_on_the_simplex_are_a_matrix_game(seed):
    """min over the simplex of max_i (A x - b)_i is a linear program, and its multipliers are the other player's."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(2, 4, 3)) * 10.0 ** rng.integers(-2, 3), rng.normal(size=4)
    source = ed.IIDSource({"A": A})
    program = ed.Problem(lambda x, xi: jnp.sum(x), lambda x, xi: xi["A"] @ x - b, ed.Simplex())
    found = ed.feasibility(program, source, np.full(3, 1 / 3))
    x, s = cp.Variable(3), cp.Variable()
    rules: Any = [A.mean(axis=0) @ x - b <= s, x >= 0, cp.sum(x) == 1]
    cp.Problem(cp.Minimize(s), rules).solve(solver="CLARABEL")
    assert s.value is not None
    assert found.worst == pytest.approx(float(s.value), abs=1e-6 * (1 + np.abs(A).max()))
    assert found.multipliers.sum() == pytest.approx(1.0)
    game = A.mean(axis=0).T @ found.multipliers  # the proof: no x does better against these weights
    assert game.min() - found.multipliers @ b == pytest.approx(found.worst, abs=1e-5 * (1 + np.abs(A).max()))


@pytest.mark.parametrize("seed", range(3))
def test_random_quadratic_constraints_against_another_solver(seed):
    rng = np.random.default_rng(10 + seed)
    o, rho = rng.normal(size=(3, 4, 2)), rng.uniform(0.0, 2.0, size=4)
    source = ed.MarkovSource(ed.MarkovChain(rng.dirichlet(np.ones(3), size=3)), {"o": o})
    law = source.chain.stationary
    quadratics = ed.Problem(
        lambda x, xi: jnp.sum(x**2), lambda x, xi: jnp.sum((x[None] - xi["o"]) ** 2, axis=1) - rho, ed.Ball(1.0)
    )
    found = ed.feasibility(quadratics, source, np.zeros(2))
    x = cp.Variable(2)
    values = [sum(w * cp.sum_squares(x - o[j, i]) for j, w in enumerate(law)) - rho[i] for i in range(4)]
    best = cp.Problem(cp.Minimize(cp.max(cp.hstack(values))), [cp.norm(x) <= 1]).solve(solver="CLARABEL")
    assert found.worst == pytest.approx(best, abs=1e-6)
    assert found.constraints.max() == pytest.approx(found.worst, abs=1e-12)


def test_an_infeasible_reference_points_to_feasibility():
    limits = problem(lambda x, xi: jnp.stack([1 - x[0], x[0] + 1]))
    with pytest.raises(ValueError, match="feasibility"):
        ed.solve_reference(limits, SOURCE, np.zeros(2))


@pytest.mark.parametrize("factors", [(1e7, 1.0), (1e8, 1e-8), (1e-8, 1e8), (1e-8, 1e-8), (1.0, 1e-7)])
def test_constraints_in_units_far_apart_are_found_infeasible(factors):
    """a (2 x - 1) <= 0 and b (0.8 - x) <= 0: at the best point both are equal, a (2 x - 1) = b (0.8 - x)."""
    a, b = factors
    found = ed.feasibility(
        problem(lambda x, xi: jnp.stack([a * (2 * x[0] - 1), b * (0.8 - x[0])])), SOURCE, np.zeros(2)
    )
    assert found.verdict == "infeasible"
    assert found.conflict == (0, 1)
    assert found.worst == pytest.approx(0.6 * a * b / (2 * a + b), rel=1e-6)
    assert found.least <= found.worst
    np.testing.assert_allclose(found.multipliers, np.array([b, 2 * a]) / (2 * a + b), rtol=1e-6)


def any_loss(x, xi):
    return x[0]


def any_rows(x, xi):
    return xi["factor"] * (xi["A"] @ x / xi["unit"] + xi["curve"] * jnp.sum((x / xi["unit"]) ** 2) - xi["b"])


@hypothesis.settings(deadline=None, max_examples=12, derandomize=True)
@hypothesis.given(
    st.integers(0, 10_000), st.sampled_from([0.0, 1.0]), st.tuples(*[st.floats(-8, 8)] * 4), st.floats(-6, 6)
)
def test_no_unit_of_any_constraint_or_of_x_changes_the_verdict(seed, curve, factors, unit):
    """Random linear and quadratic constraints on a ball of radius 1: the verdict is that of another solver."""
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(4, 3)), rng.normal(size=4) * 0.7 + 0.3 + curve / 2
    factors, unit = 10.0 ** np.array(factors), 10.0**unit
    x, s = cp.Variable(3), cp.Variable()
    rules: Any = [A @ x + curve * cp.sum_squares(x) - b <= s, cp.norm(x) <= 1]
    cp.Problem(cp.Minimize(s), rules).solve(solver="CLARABEL")
    assert s.value is not None
    hypothesis.assume(abs(float(s.value)) > 1e-4)

    def asked(factors, unit):
        rows = {"factor": factors, "A": A, "b": b, "curve": np.array(curve), "unit": np.array(unit)}
        source = ed.IIDSource({name: np.asarray(value)[None] for name, value in rows.items()})
        return ed.feasibility(ed.Problem(any_loss, any_rows, ed.Ball(unit)), source, np.zeros(3))

    plain, scaled = asked(np.ones(4), 1.0), asked(factors, unit)
    assert plain.worst == pytest.approx(float(s.value), abs=1e-6)
    assert plain.verdict == scaled.verdict == ("infeasible" if s.value > 0 else "slater")
    assert plain.conflict == scaled.conflict
    assert scaled.least <= scaled.worst
    # the proof holds in the units asked for, to the last digits of the largest of them
    assert scaled.worst - scaled.least <= 1e-6 * abs(scaled.worst) + 1e-13 * factors.max()
    same = asked(np.full(4, factors[0]), unit)
    assert same.worst == pytest.approx(factors[0] * plain.worst, rel=1e-6)


def test_constraints_with_kinks_and_constraints_that_are_constant():
    source = ed.IIDSource(np.ones((2, 2)))
    kinked = problem(lambda x, xi: 1e-8 * jnp.stack([jnp.abs(x[0] - 1) - 0.2, jnp.abs(x[0] + 1) - 0.2, x[1] - 9]))
    found = ed.feasibility(kinked, source, np.array([0.3, 0.1]))
    assert (found.verdict, found.conflict) == ("infeasible", (0, 1))
    assert found.worst == pytest.approx(0.8e-8, rel=1e-9)
    fixed = problem(lambda x, xi: jnp.stack([x[0], 1e-9 + 0 * x[1]]))
    found = ed.feasibility(fixed, source, np.zeros(2))
    assert (found.verdict, found.conflict, found.worst) == ("infeasible", (1,), pytest.approx(1e-9))


# ---- queues ----

CONFLICT = problem(lambda x, xi: jnp.stack([1 - x[0] + xi[0], x[0] + 0.5, x[1] - 9]))
FINE = problem(lambda x, xi: jnp.stack([x[0] - 0.5 + xi[0] / 8]))
CHAIN = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0, -1.0], [-1.0, 1.0]]))


@pytest.mark.parametrize("algorithm", [ed.edpp("auto"), ed.mdpp()], ids=lambda a: a.name)
def test_queues_of_an_infeasible_problem_give_the_smallest_worst_violation(algorithm):
    result = ed.run(algorithm, CONFLICT, CHAIN, x0=np.zeros(2), num_samples=20_000, seeds=8, record=20)
    found = result.feasibility()
    assert found.verdict == "infeasible", str(found)
    assert found.conflict == (0, 1)
    low, high = found.worst
    # 0.75 exactly; MDPP's queues have the noise of its estimates, and the others' a transient of order sqrt(T) / T
    assert low == pytest.approx(0.75, abs=0.03)
    assert high == pytest.approx(0.75, abs=0.06)
    assert low <= high
    assert found.x[0] == pytest.approx(0.25, abs=0.06)
    assert "cannot all be met" in str(found)


def test_queue_slopes_are_the_least_squares_violation_and_bracket_the_smallest_worst_one():
    """x >= 1 against x <= -1 twice over: squares settle at x = -1/3, the worst violation is least at x = 0."""
    thrice = problem(lambda x, xi: jnp.stack([1 - x[0] + xi[0], x[0] + 1, x[0] + 1]))
    found = ed.run(ed.edpp(4.0), thrice, CHAIN, x0=np.zeros(2), num_samples=20_000, seeds=8, record=20).feasibility()
    np.testing.assert_allclose(found.slope, [4 / 3, 2 / 3, 2 / 3], atol=0.03)
    low, high = found.worst
    assert low == pytest.approx(1.0, abs=0.02)  # (16 + 4 + 4) / 9 over 8 / 3
    assert high == pytest.approx(4 / 3, abs=0.03)
    exact = ed.feasibility(thrice, CHAIN, np.zeros(2))
    assert low - 0.02 <= exact.worst <= high


@pytest.mark.parametrize("samples", [50, 500, 5_000])
@pytest.mark.parametrize("tau", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("start", [0.0, 1.5])
def test_a_feasible_problem_is_never_called_infeasible_however_young_the_run(samples, tau, start):
    """With tau_mix = 1,000 the point hardly moves for hundreds of rounds, and the queue grows in proportion to t."""
    result = ed.run(ed.edpp(tau), FINE, CHAIN, x0=np.array([start, 0.0]), num_samples=samples, seeds=4, record=20)
    assert result.feasibility().verdict in ("no sign", "undecided")


def test_with_time_the_queues_of_a_feasible_problem_show_no_sign():
    result = ed.run(ed.edpp(4.0), FINE, CHAIN, x0=np.zeros(2), num_samples=20_000, seeds=4, record=20)
    found = result.feasibility()
    assert found.verdict == "no sign"
    assert found.growth == pytest.approx(0.5, abs=0.1)  # sqrt t under Slater's condition, theorem 3
    assert "no sign of a conflict" in str(found)


def test_empty_queues_do_not_grow():
    rounds = np.array([[1, 2, 3, 4]])
    found = queue_evidence(rounds, np.zeros((1, 4, 2)), np.zeros((1, 3)))
    assert (found.verdict, found.growth) == ("no sign", 0.0)
    assert "do not grow" in str(found)


def test_one_seed_says_that_it_has_no_spread():
    rounds = np.arange(1, 9)[None]
    found = queue_evidence(rounds, 2.0 * rounds[..., None], np.zeros((1, 3)))
    assert found.verdict == "infeasible"
    assert found.worst == (2.0, 2.0)
    assert "one seed: no spread" in str(found)


def test_what_cannot_be_judged_is_refused():
    run: Any = {"x0": np.zeros(2), "num_samples": 100, "seeds": 8, "record": 20}
    result = ed.run(ed.edpp(4.0), CONFLICT, CHAIN, **run)
    with pytest.raises(ValueError, match="record=4"):
        queue_evidence(result.rounds[:, -1:], result.queue[:, -1:], result.solution)
    with pytest.raises(ValueError, match="damped multipliers"):
        ed.run(ed.pd2(1.0), CONFLICT, CHAIN, **run).feasibility()
    copy = dataclasses.replace(result, setting=None)
    with pytest.raises(ValueError, match=r"does not know its run.* call run outside"):
        copy.feasibility()
    with pytest.raises(ValueError, match=r"ed\.certify\(problem, x, source\)"):
        copy.certify(CONFLICT)
