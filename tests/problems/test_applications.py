"""Applications: each optimum is that of a solver that is not ours, from formulas that are not those of the problem."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

import ergodrift as ed
from ergodrift import problems
from ergodrift.data.expectation import expectations
from ergodrift.peers.tasks import electricity, people, queue, scores
from ergodrift.problems import ads, decisions, detection, flights, regimes
from ergodrift.problems.completion import delay_cells
from ergodrift.problems.electricity import CHARGER, charging_columns, reserve_columns
from ergodrift.problems.portfolio import WORST
from ergodrift.problems.scheduling import GAIN, arrivals

pytestmark = pytest.mark.x64("optima are found in float64")


def agrees(found: problems.Application[Any, Any], value: float, tolerance: float = 1e-6) -> None:
    """The same value, at a point of the domain that keeps the constraints, of which one binds."""
    problem, source, reference = found
    assert reference.value == pytest.approx(value, rel=tolerance, abs=tolerance)
    loss, constraints = expectations(problem, source, reference.x)
    assert float(loss) == pytest.approx(reference.value, rel=1e-9, abs=1e-12)
    assert constraints.max() < 1e-6
    assert reference.multipliers.max() > 0
    assert problem.geometry.contains(jax.tree.map(np.asarray, reference.x))


def minimum(objective: Any, constraints: list[Any]) -> float:
    program = cp.Problem(cp.Minimize(objective), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    assert program.status == cp.OPTIMAL
    return float(np.asarray(program.value))


def linear(cost: np.ndarray, **program: Any) -> scipy.optimize.OptimizeResult:
    found = scipy.optimize.linprog(cost, method="highs", **program)
    assert found.status == 0, found.message
    return found


def test_scheduling():
    agrees(problems.scheduling(), queue.optimum().loss)


def test_water_filling_has_its_optimum_inside_the_box_that_stands_for_all_powers():
    found = problems.water_filling(2.0)
    p = cp.Variable((3, 2), nonneg=True)
    sent = [cp.sum(cp.log1p(cp.multiply(GAIN, p[:, i]))) / (3 * np.log(2)) for i in range(2)]
    limits = [sent[i] >= 2 * arrivals()[i] for i in range(2)]
    agrees(found, minimum(cp.sum(p) / 3, limits))
    largest = np.asarray(found.problem.geometry.project(np.full((3, 2), 1e9)))
    assert (found.reference.x < 0.9 * largest).all()


def test_occupation_measures_are_those_of_the_linear_program():
    places, limit, slack, most = 3, 1.0, 1e-3, 20.0
    world = decisions.room(places)
    states, actions = world.P.shape[:2]
    often = ed.MarkovChain(world.P.mean(axis=1)).stationary[:, None] / actions  # of the policy that acts at random
    flow = (world.P - np.eye(states)[:, None]).reshape(-1, states).T
    rows = np.vstack([flow, -flow, np.ones(states * actions), -np.ones(states * actions)])
    over = np.repeat(world.waiting - limit, actions)
    cost = np.tile(world.power, states)

    def program(slack: float) -> scipy.optimize.OptimizeResult:
        levels = np.concatenate([np.full(2 * states, slack), [1 + slack, slack - 1, 0.0]])
        bounds = [(0, most * m) for m in np.repeat(often, actions)]
        return linear(cost, A_ub=np.vstack([rows, over]), b_ub=levels, bounds=bounds)

    found = problems.occupation(places=places, limit=limit, slack=slack, most=most)
    agrees(found, program(slack).fun)
    # The policy itself costs what the program without slack says, but for what slack allows.
    power, waiting = decisions.average(world, decisions.policy(found.reference.x))
    assert power == pytest.approx(program(0.0).fun, abs=0.02)
    assert waiting == pytest.approx(limit, abs=0.05)
    exact = decisions.policy(program(0.0).x.reshape(states, actions))
    np.testing.assert_allclose(decisions.average(world, exact), [program(0.0).fun, limit], atol=1e-9)


def test_a_room_is_a_queue():
    P = decisions.room(2).P
    assert P.shape == (3, 3, 3)
    np.testing.assert_allclose(P.sum(axis=2), 1)
    np.testing.assert_allclose(P[1, 2], [0.6 * 0.8, 0.4 * 0.8 + 0.6 * 0.2, 0.4 * 0.2])
    np.testing.assert_allclose(P[2, 0], [0, 0.6 * 0.2, 0.8 + 0.4 * 0.2])


def test_pacing():
    found = problems.pacing(2000)
    values = np.asarray(found.source.parts[0].loss_law.points).mean(axis=0)
    prices = ed.MarkovChain(ads.CROWD).stationary @ ads.PRICES
    wanted = linear(-np.append(values, 0.0), A_ub=np.diag(np.append(prices, 1.0)), b_ub=np.append(ads.BUDGETS, 1.0),
                    A_eq=np.ones((1, 4)), b_eq=[1.0])  # fmt: skip
    agrees(found, wanted.fun)


def test_neyman_pearson():
    data, train, _ = detection.compas_parts()
    wanted = people.neyman_optimum(*detection.compas_rows(data, train, train), 0.5)
    found = problems.neyman_pearson(0.5)
    agrees(found, wanted.loss)
    X, y = detection.compas_rows(data, train, train)
    assert 0 < (X @ found.reference.x >= 0)[y < 0].mean() <= 0.5 / np.log(2)


@pytest.mark.slow
def test_worst_regime():
    train = regimes.price_columns()[0]
    w, t = cp.Variable(train["a"].shape[1]), cp.Variable()
    limits = []
    for mask in train["regime"].T > 0:
        R = np.linalg.qr(np.column_stack([train["a"], -train["y"]])[mask])[1] / np.sqrt(mask.sum())
        limits.append(cp.sum_squares(R[:, :-1] @ w + R[:, -1]) <= t)
    agrees(problems.worst_regime(), minimum(t, limits))


@pytest.mark.slow
def test_completion():
    days, bias, radius = 30, 0.02, 2.0
    _, cells = delay_cells()
    until = np.searchsorted(cells["date"], np.datetime64("2013-01-01") + days) // 16 * 16
    row, column, delay, airport = (cells[name][:until] for name in ("row", "column", "delay", "airport"))
    X = cp.Variable((6, 4))
    counts, sums = np.zeros((6, 4)), np.zeros((6, 4))
    np.add.at(counts, (row, column), 1 / until)
    np.add.at(sums, (row, column), delay / until)
    limits: list[Any] = [cp.normNuc(X) <= radius]
    for member in airport.T > 0:
        share = np.zeros((6, 4))
        np.add.at(share, (row[member], column[member]), 1 / member.sum())
        off = cp.sum(cp.multiply(share, X)) - delay[member].mean()
        limits += [off <= bias, -off <= bias]
    square = cp.sum(cp.multiply(counts, cp.square(X))) / 2 - cp.sum(cp.multiply(sums, X)) + np.mean(delay**2) / 2
    agrees(problems.completion(days=days), minimum(square, limits), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["return", "variance"])
def test_portfolio(objective):
    found = problems.portfolio(objective, cvar=2.0, turnover=1.0, days=500)
    returns = np.asarray(found.source.loss_law.points)
    w, v = cp.Variable(20, nonneg=True), cp.Variable(nonneg=True)
    tail = v + cp.sum(cp.pos(-returns @ w - v)) / (0.05 * len(returns))
    limits = [tail <= 2.0, cp.norm1(w - 1 / 20) <= 1.0, cp.sum(w) == 1, v <= 100 * WORST]
    centred = np.linalg.qr(returns - returns.mean(axis=0))[1] / np.sqrt(len(returns))
    goal = -returns.mean(axis=0) @ w if objective == "return" else cp.sum_squares(centred @ w)
    agrees(found, minimum(goal, limits), 1e-5)


@pytest.mark.slow
def test_charging():
    columns = charging_columns()
    hours = len(columns["load"])
    seen = scipy.sparse.csr_array(columns["seen"].reshape(hours, -1))
    size = columns["seen"][0].size
    cost = np.concatenate([columns["price"] @ seen / hours, np.zeros(hours)])
    overload = scipy.sparse.hstack([seen, -scipy.sparse.identity(hours)])
    mean = np.concatenate([-seen.mean(axis=0), np.zeros(hours)])
    total = np.concatenate([np.zeros(size), np.full(hours, 1 / hours)])
    found = linear(
        cost,
        A_ub=scipy.sparse.vstack([overload, mean[None], total[None]]),
        b_ub=np.concatenate([75.0 - columns["load"], [-8.0, 0.6]]),
        bounds=[(0, CHARGER)] * size + [(0, None)] * hours,
    )
    agrees(problems.charging(), found.fun, 1e-5)


@pytest.mark.slow
def test_reserve():
    columns = reserve_columns()
    train = {name: column[: len(column) * 3 // 4] for name, column in columns.items()}
    agrees(problems.reserve(), electricity.capacity_optimum(train).loss, 1e-5)


@pytest.mark.slow
def test_flights():
    _, train, _ = flights.parts()
    agrees(problems.flight_parity(), scores.optimum(flights.carrier_scores(train)[1][0], 0.1, 5.0).loss)
    found = problems.airport_walk()
    _, rows = flights.airports_source(ed.LinearModel("logistic", ed.Ball(5.0)), train, 0.1)
    agrees(found, scores.optimum(rows, 0.1, 5.0).loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: problems.water_filling(0.0), "load must be .*> 0, got 0.0"),
        (lambda: problems.occupation(limit=-1.0), "limit must be .*> 0, got -1.0"),
        (lambda: problems.pacing(3), "num_auctions must be between 100"),
        (lambda: problems.neyman_pearson(-1.0), "limit must be .*> 0, got -1.0"),
        (lambda: problems.portfolio("sharpe"), "objective must be one of 'return', 'variance'"),
        (lambda: problems.portfolio(turnover=3.0), "turnover must be .*<= 2, got 3.0"),
        (lambda: problems.charging(100.0), "energy must be .*< 30, got 100.0"),
        (lambda: problems.completion(days=0), "days must be between 1 and 365, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
