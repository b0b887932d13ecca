"""Metrics, certificates, dependence and feasibility from the agents' own values: as from the pooled data."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from walks import AGENTS, GRAPH, PROBLEM, SOURCE, ZERO, agents

pytestmark = pytest.mark.x64("as from the pooled data, to float64's digits")

CHAIN = ed.MarkovChain.from_graph(GRAPH)
X = np.array([0.3, -0.2, 0.1])


def test_certificates_are_those_of_the_pooled_data(network):
    for method in ("batch", "hoeffding"):
        found = network.certify(PROBLEM, X, CHAIN, method=method, num_samples=4000)
        wanted = ed.certify(PROBLEM, X, SOURCE, method=method, num_samples=4000)
        for name in ("estimate", "lower", "upper", "loss_estimate", "loss_lower", "loss_upper"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12, err_msg=name)
        assert found.verdict == wanted.verdict
    found, wanted = network.diagnose(PROBLEM, X, CHAIN), ed.diagnose(SOURCE, PROBLEM, X)
    assert found.tau_mix == pytest.approx(wanted.tau_mix, rel=1e-9)
    assert found.ess == pytest.approx(wanted.ess, rel=1e-9)


def test_metrics(network):
    metrics = {"loss": cases.loss, "worst": lambda x, xi: jnp.max(cases.constraints(x, xi)), "one": lambda x, xi: 1.0}
    found = network.evaluate(metrics, X)
    own = [float(PROBLEM.feedback(X, one.load()).loss) for one in agents()]
    np.testing.assert_allclose(found.agents["loss"], own, rtol=1e-12)
    assert found.mean["loss"] == pytest.approx(np.mean(own), rel=1e-12)
    assert found.mean["one"] == 1.0
    assert network.evaluate(metrics, X, weights=np.arange(AGENTS)).mean["loss"] == pytest.approx(
        np.average(own, weights=np.arange(AGENTS))
    )
    with pytest.raises(ValueError, match=r"weights must be 3 numbers >= 0"):
        network.evaluate(metrics, X, weights=np.ones(2))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.0, 3.0])
def test_feasibility(network, limit):
    """Bent constraints, met or not: the value of an independent solver on the pooled data."""

    def constraints(x, xi):
        return jnp.stack([jnp.sum(x**2) - 0.5 + 0.1 * cases.loss(x, xi), limit - x[0]])

    problem = ed.Problem(cases.loss, constraints, ed.Ball(1.5))
    found, wanted = network.feasibility(problem, ZERO), ed.feasibility(problem, SOURCE, ZERO)
    assert found.worst == pytest.approx(wanted.worst, abs=1e-5)
    assert found.least <= wanted.worst + 1e-9
    assert found.verdict == wanted.verdict
    assert found.conflict == wanted.conflict


@pytest.mark.slow
def test_noise_is_accounted_for(cluster):
    """The interval grows by the quantile of the noise in the mean, and its answers cost epsilon."""
    noise, clip = 0.01, 100.0
    with dd.Network(agents(privacy=dd.Privacy(clip=clip, noise=noise))) as network:
        found = network.certify(PROBLEM, X, CHAIN, method="hoeffding", num_samples=4000)
        plain = ed.certify(PROBLEM, X, SOURCE, 0.975, method="hoeffding", num_samples=4000)
        spread = noise * clip / np.sqrt(AGENTS)
        assert ((found.upper - found.lower) > (plain.upper - plain.lower) * 0.5 + 2 * 1.9 * spread).all()
        assert (np.abs(found.estimate - plain.estimate) < 5 * spread).all()
        assert found.confidence == pytest.approx(0.95)
        assert any("clipped" in said for said in found.warnings)
        seen = network.evaluate({"loss": cases.loss}, X)
        assert seen.noise == pytest.approx(spread)
        assert set(seen.epsilon) == set(network.names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "sign", "verdict"),
    [(1e-4, 1.0, "slater"), (1e-4, -1.0, "infeasible"), (0.1, 1.0, "edge"), (0, 1.0, "slater")],
)
def test_noise_makes_a_feasibility_less_certain(cluster, noise, sign, verdict):
    """x_0 - 0.5 is -2 at best on this ball, and 3 - 0.5 - x_0 is 1: what is said holds, or nothing is."""

    def constraints(x, xi):
        return jnp.stack([x[0] if sign > 0 else 3.0 - x[0]]) - 0.5 + 0.0 * cases.loss(x, xi)

    problem, truth = ed.Problem(cases.loss, constraints, ed.Ball(1.5)), -2.0 if sign > 0 else 1.0
    with dd.Network(agents(privacy=dd.Privacy(clip=100.0, noise=noise))) as network:
        found = network.feasibility(problem, ZERO)
    assert found.least <= truth + 1e-6
    assert found.worst >= truth - 1e-6
    assert found.verdict == verdict
    assert (found.worst - found.least > 1e-3) == (noise > 0)


@pytest.mark.slow
def test_whatever_is_asked_is_written_off_the_same_budget(cluster, tmp_path):
    """In a walk or not: a hub gains nothing by asking otherwise."""
    pytest.importorskip("dp_accounting")
    file = tmp_path / "ledger"
    privacy = dd.Privacy(100.0, noise=60.0, delta=1e-5, budget=2.0, ledger=file)
    members = [*agents(2), dd.Agent(agents()[2].data, name="wary", privacy=privacy)]

    def answers():
        return round(json.loads(file.read_text())["spent"] / privacy.cost, 6)

    def evaluated():
        return network.evaluate({"one": lambda x, xi: 1.0}, X).missing

    with dd.Network(members) as network:
        assert not evaluated()
        assert answers() == 1
        network.certify(PROBLEM, X, CHAIN, num_samples=4000)
        assert answers() == 2
        network.diagnose(PROBLEM, X, CHAIN)
        assert answers() == 3
        network.feasibility(PROBLEM, ZERO)
        before = answers()
        assert before >= 4
        done = dd.walk(ed.edpp(4.0), PROBLEM, GRAPH, network, x0=ZERO, num_samples=6, paths=[2, 0, 2, 1, 2, 0])
        assert answers() == before + 3
        assert done.epsilon["wary"] == privacy.epsilon(3)
        while not (missing := evaluated()):
            assert privacy.epsilon(round(answers())) <= 2.0
        assert missing == {"wary": "its privacy budget is spent"}
    with dd.Network(members) as network:
        assert evaluated() == missing


@pytest.mark.slow
def test_the_noise_that_a_machines_owner_asks_for_counts(cluster, tmp_path):
    """Though the hub has not asked for it, and does not know of it before the agents say so."""
    pytest.importorskip("dp_accounting")
    lines = []
    for number, agent in enumerate(agents()):
        np.savez(tmp_path / f"{number}.npz", **dict(agent.data))  # type: ignore[reportArgumentType]
        lines += [f'[agents."agent {number}"]', f'data = "{tmp_path}/{number}.npz"']
        lines += ["privacy = { clip = 100.0, noise = 0.01 }", f'log = "{tmp_path}/log"']
    (tmp_path / "site.toml").write_text("\n".join(lines))
    members = [dd.Agent(None) for _ in range(AGENTS)]
    with dd.Network(members, runtime_env={"env_vars": {"ERGODRIFT_SITE": str(tmp_path / "site.toml")}}) as network:
        found = network.certify(PROBLEM, X, CHAIN, method="hoeffding", num_samples=4000)
        seen = network.evaluate({"loss": cases.loss}, X)
    assert found.confidence == pytest.approx(0.95)
    assert any("wider on each side for the noise" in said for said in found.warnings)
    assert seen.noise == pytest.approx(1.0 / np.sqrt(AGENTS))
    assert set(seen.epsilon) == {f"agent {number}" for number in range(AGENTS)}
