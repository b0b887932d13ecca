"""The skeletons of docs/contribute/extend.md with everything: what is written outside works as what is inside."""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from digits import rounded
from ergodrift import metrics

PAGE = Path(__file__).parents[1] / "docs" / "contribute" / "extend.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
SKELETONS: Any = {"__name__": "skeletons"}
for block in BLOCKS:
    if "ed.run(" not in block:  # the use of them is run with the other docs
        exec(compile(block, str(PAGE), "exec"), SKELETONS)
Cautious, Largest, MiniBatch = (SKELETONS[name] for name in ("Cautious", "Largest", "MiniBatch"))
PositiveBall, CappedSimplex, ScaledBox = (SKELETONS[name] for name in ("PositiveBall", "CappedSimplex", "ScaledBox"))
BlockMeans, cautious, switching = (SKELETONS[name] for name in ("BlockMeans", "cautious", "switching"))

DIM = 3
CHAIN = ed.MarkovChain([[0.9, 0.1], [0.3, 0.7]])
DATA = np.array([[0.9, 0.3, -0.4], [0.2, 0.8, 1.6]])
SOURCE = ed.MarkovSource(CHAIN, DATA)
X0 = np.full(DIM, 1 / DIM)
OPTIONS: Any = {"x0": X0, "num_samples": 96, "seeds": 2, "record": 4}


def loss(x, xi):
    """Pulls towards the sample."""
    return jnp.sum(jnp.square(x - xi))


def constraints(x, xi):
    """The first entry is limited on average."""
    return x[:1] * xi[:1] - 0.2


class ByProjection(CappedSimplex):
    """The same domain, of which solvers see the projection alone."""

    def region(self, x):
        return ed.Geometry.region(self, x)


WEIGHTS = np.array([1.0, 2.0, 4.0])
DOMAINS: Any = {
    "positive ball": (PositiveBall, 1.0, lambda v: [v >= 0, cp.norm2(v) <= 1]),
    "capped simplex": (CappedSimplex, 0.5, lambda v: [v >= 0, v <= 0.5, cp.sum(v) == 1]),
    "capped simplex by its projection": (ByProjection, 0.5, lambda v: [v >= 0, v <= 0.5, cp.sum(v) == 1]),
    "scaled box": (lambda scale: ScaledBox(scale * jnp.asarray(WEIGHTS)), 1.0, lambda v: [v >= -1, v <= 1]),
}


def test_skeletons_are_short_and_use_public_names_only():
    assert len(BLOCKS) > 8
    for block in BLOCKS:
        assert len(block.splitlines()) <= 40
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ed":
                assert node.attr in ed.__all__
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert isinstance(node, ast.Import)
                assert {alias.name for alias in node.names} <= {"jax", "jax.numpy", "numpy", "scipy", "ergodrift"}


@pytest.fixture(params=DOMAINS)
def domain(request):
    """How the domain is made, with what number, and the domain once more for another solver."""
    return DOMAINS[request.param]


def test_a_geometry_of_ones_own_is_solved_as_another_solver_does(domain):
    make, number, again = domain
    problem = ed.Problem(loss, constraints, make(number))
    found = ed.solve_reference(problem, SOURCE, X0)
    v, law = cp.Variable(DIM), CHAIN.stationary
    objective = sum(w * cp.sum_squares(v - xi) for w, xi in zip(law, DATA, strict=True))
    limit = v[0] * float(law @ DATA[:, 0]) <= 0.2
    best = cp.Problem(cp.Minimize(objective), [limit, *again(v)]).solve(solver=cp.CLARABEL)
    assert found.value == pytest.approx(best, rel=1e-6)
    assert found.multipliers == pytest.approx(limit.dual_value, abs=1e-3)
    assert 0 <= found.gap <= 1e-6
    s = cp.Variable()
    worst = cp.Problem(cp.Minimize(s), [v[0] * float(law @ DATA[:, 0]) - 0.2 <= s, *again(v)]).solve(solver=cp.CLARABEL)
    feasible = ed.feasibility(problem, SOURCE, X0)
    assert feasible.worst == pytest.approx(worst, abs=1e-6)
    assert feasible.verdict == "slater"
    hopeless = ed.Problem(loss, lambda x, xi: jnp.stack([3.5 - jnp.sum(x), x[0] - 9]), make(number))
    assert ed.feasibility(hopeless, SOURCE, X0).conflict == (0,)
    with pytest.raises(ValueError, match="no feasible point"):
        ed.solve_reference(hopeless, SOURCE, X0)


@pytest.mark.slow
def test_a_geometry_of_ones_own_runs_and_is_judged(domain, tmp_path):
    make, number, _ = domain
    problem = ed.Problem(loss, constraints, make(number))
    reference = ed.solve_reference(problem, SOURCE, X0)
    result = ed.run(ed.edpp(4.0), problem, SOURCE, checkpoint=tmp_path / "run.npz", **OPTIONS)
    assert jax.vmap(jax.vmap(make(number).contains))(result.x).all()
    assert metrics.evaluate(result, problem, SOURCE, reference).lagrangian_gap.min() > -1e-6
    assert metrics.regret(result, problem, SOURCE).shape == (2, 4)
    checked = result.within_theory()
    assert checked.holds
    assert {entry.statement for entry in checked.entries} >= {"appendix A", "theorem 1", "theorems 2 and 3"}
    assert result.certify(num_samples=400).num_samples == 400
    assert ed.auto(problem, SOURCE, x0=X0, num_samples=2_000).name == "SRDPP"
    other = ed.Problem(loss, constraints, make(0.9 * number))
    with pytest.raises(ValueError, match="domain"):
        ed.run(ed.edpp(4.0), other, SOURCE, checkpoint=tmp_path / "run.npz", **OPTIONS)


def test_sweeps_go_over_the_numbers_of_a_geometry_and_of_an_algorithm(domain):
    make, number, _ = domain
    sizes, taus = jnp.asarray([number, 0.9 * number]), jnp.asarray([2.0, 8.0])

    def solved(size, tau):
        return ed.run(ed.edpp(tau), ed.Problem(loss, constraints, make(size)), SOURCE, **OPTIONS).solution

    together = jax.vmap(solved)(sizes, taus)
    for row in range(2):
        alone = solved(float(sizes[row]), float(taus[row]))
        np.testing.assert_allclose(together[row], alone, rtol=rounded(1e-12), atol=rounded(1e-12))


def test_a_geometry_of_ones_own_is_part_of_a_product():
    both = ed.Product({"w": PositiveBall(1.0), "b": ed.Box(-1.0, 1.0)})
    x0 = {"w": X0, "b": np.zeros(2)}
    problem = ed.Problem(
        lambda x, xi: loss(x["w"], xi) + jnp.sum(jnp.square(x["b"] - xi[:2])),
        lambda x, xi: constraints(x["w"], xi),
        both,
    )
    alone = ed.solve_reference(ed.Problem(loss, constraints, PositiveBall(1.0)), SOURCE, X0)
    found = ed.solve_reference(problem, SOURCE, x0)
    np.testing.assert_allclose(found.x["w"], alone.x, atol=1e-4)
    np.testing.assert_allclose(found.x["b"], CHAIN.stationary @ DATA[:, :2], atol=1e-4)
    result = ed.run(ed.adpp(), problem, SOURCE, **{**OPTIONS, "x0": x0})
    assert result.within_theory().holds


@pytest.mark.parametrize("geometry", [PositiveBall(2.0), ByProjection(0.5), PositiveBall(1e-6)], ids=repr)
def test_sizes_that_nobody_gave_are_bounds(geometry):
    """Between the truth, seen at many points, and sqrt(d) times that; a percent for how far off it is looked at."""
    draws = jnp.asarray(np.random.default_rng(0).normal(size=(400, DIM)) * 10)
    points = np.asarray(jax.vmap(geometry.project)(draws))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2).max()
    x = jnp.asarray(X0)
    assert apart <= float(ed.Geometry.diameter(geometry, x)) <= 1.05 * np.sqrt(DIM) * apart
    assert float(ed.Geometry.reach(geometry, x)) >= np.linalg.norm(points, axis=1).max()


def test_a_euclidean_prox_is_a_projection_too():
    class ByProx(ed.Geometry):
        def prox(self, x, direction, proximity):
            return jnp.clip(x - direction / (2 * proximity), -1, 1)

    np.testing.assert_allclose(ByProx().project(jnp.array([3.0, 0.5])), [1.0, 0.5])

    class Neither(ed.Geometry):
        pass

    with pytest.raises(NotImplementedError, match="Neither needs a method project"):
        Neither().project(jnp.zeros(2))


PROBLEM = ed.Problem(loss, constraints, ed.Ball(1.5))
ALGORITHMS: Any = {
    "a preset schedule": (ed.Algorithm("mine", ed.DriftPlusPenalty, Cautious()), {"appendix A", "theorem 1"}),
    "a schedule with a state": (ed.Algorithm("mine", ed.DriftPlusPenalty, Largest()), {"appendix A"}),
    "an estimator": (cautious(), {"appendix A"}),
    "a method": (switching, set()),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_of_ones_own_works_with_everything(name, tmp_path):
    algorithm, statements = ALGORITHMS[name]
    result = ed.run(algorithm, PROBLEM, SOURCE, checkpoint=tmp_path / "run.npz", **OPTIONS)
    assert result.name == algorithm.name
    again = ed.run(algorithm, PROBLEM, SOURCE, checkpoint=tmp_path / "run.npz", **OPTIONS)
    np.testing.assert_array_equal(again.solution, result.solution)
    method = algorithm.bind(PROBLEM)
    state, path = method.init(X0, 1, jax.random.key(0)), SOURCE.paths(1, 96)[0]
    for index in path:
        state, _ = method.step(state, PROBLEM.feedback(state.x, DATA[index]))
    np.testing.assert_allclose(state.x, result.x[0, -1], rtol=rounded(1e-12), atol=rounded(1e-12))
    checked = result.within_theory()
    assert checked.checked == bool(statements)
    assert {entry.statement for entry in checked.entries} >= statements
    assert checked.left_out or "theorem 1" in statements
    if statements:
        assert checked.holds
    reference = ed.solve_reference(PROBLEM, SOURCE)
    assert np.isfinite(metrics.evaluate(result, PROBLEM, SOURCE, reference).gap).all()
    assert np.isfinite(metrics.regret(result, PROBLEM, SOURCE)).all()
    assert result.certify(num_samples=400).verdict
    result.save(tmp_path / "result.npz")
    assert ed.load_result(tmp_path / "result.npz").name == algorithm.name
    with pytest.raises(ValueError, match="levels were given, but"):
        ed.run(algorithm, PROBLEM, SOURCE, levels=np.ones((2, 3), int), **OPTIONS)


def test_weights_that_decrease_have_no_theorem():
    class Falling(ed.PresetSchedule):
        def at(self, t):
            return ed.Weights(jnp.ones_like(t), 10 / t)

    checked = ed.run(
        ed.Algorithm("falling", ed.DriftPlusPenalty, Falling()), PROBLEM, SOURCE, **OPTIONS
    ).within_theory()
    assert {entry.statement for entry in checked.entries} == {"appendix A"}
    assert checked.left_out == (("theorems 1 to 3", "they ask for V_t, alpha_t and alpha_t / V_t that never decrease"),)


def test_what_does_not_fit_is_named():
    class Silent(ed.Schedule):
        def weights(self, state, t, sizes):
            return state, {"penalty": t}

    class Short(ed.DriftPlusPenalty):
        def update(self, x, queue, feedback, weights):
            return x[0], queue

    class States(ed.SingleSample):
        needs_state = True

    with pytest.raises(TypeError, match=r"DriftPlusPenalty reads penalty, proximity .* Silent.weights\(\.\.\.\)"):
        ed.run(ed.Algorithm("silent", ed.DriftPlusPenalty, Silent()), PROBLEM, SOURCE, **OPTIONS)
    with pytest.raises(ValueError, match=r"Short\.update returns x and queue of shapes"):
        ed.run(ed.Algorithm("short", Short, ed.dpp().schedule), PROBLEM, SOURCE, **OPTIONS)
    with pytest.raises(ValueError, match="States asks which state a sample came from"):
        ed.run(
            ed.Algorithm("s", ed.DriftPlusPenalty, ed.dpp().schedule, States()), PROBLEM, ed.SeriesSource(DATA), x0=X0
        )
    with pytest.raises(TypeError, match=r"method must be an instance, BlockMeans\(\.\.\.\), not the class"):
        ed.certify(PROBLEM, X0, SOURCE, num_samples=400, method=BlockMeans)
    with pytest.raises(TypeError, match="rule must be a Method class"):
        ed.Algorithm("rule", 3, ed.dpp().schedule)


def test_an_unbounded_domain_is_refused():
    class Orthant(ed.Geometry):
        def project(self, x):
            return jnp.maximum(x, 0)

    problem = ed.Problem(loss, constraints, Orthant())
    assert np.isinf(problem.geometry.diameter(X0))
    with pytest.raises(ValueError, match="not bounded"):
        ed.solve_reference(problem, SOURCE, X0)
    with pytest.raises(ValueError, match="must be bounded"):
        ed.Region.box(X0, 0.0, np.inf)


def test_a_mini_batch_is_the_mean_of_its_samples():
    """Rounds of four samples at one point: three of them move x as three steps on means would."""
    method = cautious(size=4).bind(PROBLEM)
    by_hand = dataclasses.replace(method, estimator=ed.SingleSample())
    state, other = (one.init(X0, 1) for one in (method, by_hand))
    for window in SOURCE.paths(1, 12)[0].reshape(3, 4):
        told = [PROBLEM.feedback(state.x, DATA[index]) for index in window]
        for feedback in told[:-1]:
            state, _ = method.step(state, feedback)
        state, info = method.step(state, told[-1])
        assert bool(info.updated)
        other, _ = by_hand.step(other, jax.tree.map(lambda *leaves: sum(leaves) / 4, *told))
    np.testing.assert_allclose(state.x, other.x, rtol=rounded(1e-12))
    result = ed.run(cautious(size=4), PROBLEM, SOURCE, x0=X0, num_samples=11)
    assert (result.rounds[0, -1], result.samples_used[0, -1]) == (2, 8)


def test_what_is_static_stays_so_in_a_subclass():
    class Weighed(MiniBatch):
        weight: float = 2.0

    assert jax.tree.leaves(Weighed(8)) == [2.0]
    assert jax.tree.map(lambda leaf: leaf + 1, Weighed(8)).size == 8


def test_what_is_no_schedule_is_refused_by_name():
    with pytest.raises(TypeError, match="schedule must be an instance of a subclass of Schedule"):
        ed.Algorithm("mine", ed.DriftPlusPenalty, Cautious)
    with pytest.raises(TypeError, match="estimator must be an instance"):
        ed.Algorithm("mine", ed.DriftPlusPenalty, Cautious(), "single")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="static names 'sise'"):
        type("Wrong", (ed.Schedule,), {}, static=("sise",))


def test_a_certificate_method_of_ones_own():
    """Of an AR(1) series with few blocks it is the textbook's interval; all around it is as for the others."""
    rng = np.random.default_rng(0)
    series = ed.SeriesSource(rng.normal(size=(4000, DIM)))
    problem = ed.Problem(loss, lambda x, xi: jnp.stack([xi[0] - 0.5, xi[1] + 0.5, xi[2]]), ed.Ball(1.0))
    found = ed.certify(problem, X0, series, method=BlockMeans(10))
    means = np.asarray(series.data)[:, 0].reshape(10, 400).mean(axis=1) - 0.5
    reach = 2.9333 * means.std(ddof=1) / np.sqrt(10)  # Student's t with 9 degrees at 1 - 0.05 / 3 / 2
    assert found.upper[0] == pytest.approx(means.mean() + reach, rel=1e-3)
    assert found.verdict == ["satisfied", "violated", "undecided"]
    assert found.more_samples[2] > 0
    assert (found.method, found.guarantee) == ("blockmeans", "as n grows")
    assert np.isfinite([found.loss_lower, found.loss_upper]).all()
    with pytest.raises(ValueError, match="path too short"):
        ed.certify(problem, X0, ed.SeriesSource(np.cumsum(rng.normal(size=(100, DIM)), axis=0)), method=BlockMeans())

    class Range(ed.CertificateMethod):
        """Certain, and of little use."""

        every_n = True

        def intervals(self, values, delta, known):
            return known.low, known.high

    with pytest.raises(ValueError, match="method='range' needs tau_mix and bounds"):
        ed.certify(problem, X0, series, method=Range())
    sure = ed.certify(PROBLEM, X0, SOURCE, method=Range(), num_samples=100)
    assert (sure.guarantee, sure.lower[0], sure.upper[0]) == pytest.approx(
        ("every n", 0.2 / DIM - 0.2, 0.9 / DIM - 0.2), abs=1e-9
    )
    with pytest.raises(ValueError, match="method must be one of 'batch'"):
        ed.certify(PROBLEM, X0, SOURCE, method="mine", num_samples=100)


@pytest.mark.x64("walks equal their simulation to float64's digits")
@pytest.mark.parametrize("local_rounds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_all_of_them_walk(network, local_rounds):
    """Agents that have never heard of these classes make rounds with them."""
    from ergodrift import distributed as dd
    from walks import GRAPH, PROBLEM, SOURCE, close

    problem = ed.Problem(PROBLEM.loss, PROBLEM.constraints, PositiveBall(1.0))
    path = np.random.default_rng(1).integers(0, len(GRAPH), (2, 32 // local_rounds))
    options: Any = {"x0": np.zeros(3), "num_samples": 32, "record": [32]}
    walked = dd.walk(cautious(3.0), problem, GRAPH, network, tokens=2, local_rounds=local_rounds, paths=path, **options)
    run = ed.run(cautious(3.0), problem, SOURCE, seeds=2, paths=path.repeat(local_rounds, axis=1), **options)
    close(walked.result, run, 1e-12)
