"""Walks over real processes give the numbers of the core; what is counted, recorded and refused."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import cases
import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift._core import files
from ergodrift._core.progress import Progress
from walks import AGENTS, DIM, EDPP, GRAPH, PROBLEM, SOURCE, ZERO, agents, close, numbers

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


ALGORITHMS = {
    "edpp": ed.edpp(4.0),
    "mdpp": ed.mdpp(),
    "adpp": ed.adpp(),
    "rdpp": ed.rdpp(),
    "pd": ed.pd(horizon=160, gradient_bound=9.0, constraint_bound=9.0),
}


SAMPLES = 160


AT_ZERO = ed.Reference(ZERO, 0.0, np.zeros(2), np.zeros(2), 0.0)  # what regret is measured against here


@pytest.mark.parametrize(
    "name", ["edpp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rdpp", "mdpp", "adpp", "pd"))]
)
def test_a_walk_is_the_run_on_the_pooled_data(network, name):
    """Tokens are seeds, whose paths the walk draws itself; local rounds repeat every state of the path."""
    algorithm, options = ALGORITHMS[name], {"x0": ZERO, "num_samples": SAMPLES}
    path = np.asarray(SOURCE.paths([3, 8], SAMPLES))
    walk = dd.walk(algorithm, PROBLEM, GRAPH, network, tokens=[3, 8], record=[0, 1, 97], **options)
    run = ed.run(algorithm, PROBLEM, SOURCE, seeds=[3, 8], paths=path, record=[0, 1, 97], **options)
    close(walk.result, run, 1e-12)
    assert np.array_equal(walk.result.seeds, [3, 8])
    assert np.array_equal(walk.visits, np.bincount(path.ravel(), minlength=AGENTS))
    assert not walk.held.any()
    assert not walk.restarts.any()
    np.testing.assert_allclose(walk.solution, np.mean(run.solution, axis=0), rtol=1e-12)

    path, record = np.random.default_rng(1).integers(0, AGENTS, (2, SAMPLES // 4)), [4, 80, 160]
    given = {"tokens": 2, "paths": path, "local_rounds": 4, "combine": None, "record": record, **options}
    given["barrier"] = True  # so that it is known who travels with whom
    walk = dd.walk(algorithm, PROBLEM, GRAPH, network, **given)
    run = ed.run(algorithm, PROBLEM, SOURCE, seeds=2, paths=path.repeat(4, axis=1), record=record, **options)
    close(walk.result, run, 1e-12)
    assert np.array_equal(walk.solution, walk.result.solution)
    assert walk.messages.sum() == 2 * sum(len(set(places)) for places in path.T)


def test_float32(network):
    options = {"x0": ZERO.astype(np.float32), "num_samples": 400, "record": [200, 400]}
    for local_rounds in (1, 4):
        path = np.repeat(SOURCE.paths(1, 400 // local_rounds), local_rounds, axis=1)
        walk = dd.walk(ed.adpp(), PROBLEM, GRAPH, network, local_rounds=local_rounds, **options)
        run = ed.run(ed.adpp(), PROBLEM, SOURCE, paths=path, **options)
        floats = [leaf for name, leaf in numbers(walk.result).items() if name not in ("rounds", "samples_used")]
        assert {leaf.dtype for leaf in floats} == {np.dtype(np.float32)}
        close(walk.result, run, 2e-5)  # a few hundred roundings, in another order
        found, wanted = (ed.metrics.benchmark_losses(one, PROBLEM, SOURCE, [AT_ZERO]) for one in (walk.result, run))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)  # the path of the walk is known, repeats included


@pytest.mark.slow
def test_a_point_of_several_parts_and_averages(network):
    """The agents' data are those of one vector, which the parts make up."""
    geometry = ed.Product({"ball": ed.Ball(1.5), "box": ed.Box(-0.5, 0.5)})

    def whole(function):
        return lambda x, xi: function(jnp.concatenate([x["ball"], x["box"]]), xi)

    problem = ed.Problem(whole(cases.loss), whole(cases.constraints), geometry)
    for average in ("suffix", ("polynomial", 2)):
        x0 = {"ball": np.zeros(DIM - 1), "box": np.zeros(1)}
        options = {"x0": x0, "num_samples": 300, "record": [300], "average": average}
        walk = dd.walk(ed.adpp(), problem, GRAPH, network, **options)
        close(walk.result, ed.run(ed.adpp(), problem, SOURCE, **options), 1e-12)


def test_metrics_and_summary(network):
    walk = dd.walk(ed.edpp(4.0), PROBLEM, GRAPH, network, x0=ZERO, num_samples=40, tokens=2, record=4)
    run = ed.run(ed.edpp(4.0), PROBLEM, SOURCE, x0=ZERO, num_samples=40, seeds=2, record=4)
    violations = [ed.metrics.violation(one) for one in (walk.result, run)]
    np.testing.assert_allclose(*violations, rtol=1e-12, atol=1e-12)
    found, wanted = (ed.metrics.regret(one, PROBLEM, SOURCE, [AT_ZERO] * 2) for one in (walk.result, run))
    np.testing.assert_allclose(found, wanted, atol=1e-10)
    assert np.array_equal(walk.x, walk.result.x[:, -1])
    assert np.array_equal(walk.queue, walk.result.queue[:, -1])
    # A question is x, an answer f, its gradient, g and its Jacobian: nothing else travels, and no row of data.
    question, answer = 8 * DIM, 8 * (1 + DIM + 2 + 2 * DIM)
    assert walk.bytes.sum() == walk.visits.sum() * (question + answer)
    lines = str(walk).splitlines()
    assert "2 tokens, 40 hops each, 1 round per visit" in lines[0]
    assert [line.split()[:3] for line in lines[2:5]] == [["agent", str(i), str(walk.visits[i])] for i in range(AGENTS)]
    assert int(lines[-1].split()[1]) == 80


def test_the_bar_shows_hops_visits_and_bytes(network, monkeypatch):
    notes = []
    monkeypatch.setattr(Progress, "update", lambda bar, done, note="": notes.append((done, note)))
    dd.walk(ed.edpp(4.0), PROBLEM, GRAPH, network, x0=ZERO, num_samples=130, record=1)
    assert {0, 64, 128} <= {done for done, _ in notes}
    assert re.fullmatch(r"; [\d,]+ hops/s, \d+ to \d+ visits per agent, 0\.0 MB", notes[-1][1])


@pytest.mark.slow
def test_bytes_do_not_grow_with_the_data(cluster):
    """Raw rows never leave: an agent with a thousand times the data sends as much."""
    problem = ed.Problem(lambda x, xi: jnp.mean((x - xi) ** 2), lambda x, xi: x[:1] - jnp.mean(xi), ed.Ball(1.0))
    with dd.Network([dd.Agent(np.full((size, 1), float(size))) for size in (2, 2000)]) as network:
        for local_rounds in (1, 5):
            options = {"num_samples": 4 * local_rounds, "local_rounds": local_rounds, "paths": np.arange(4) % 2}
            walk = dd.walk(ed.edpp(2.0), problem, 1 - np.eye(2), network, x0=np.zeros(1), **options)
            assert walk.visits.tolist() == [2, 2]
            assert walk.bytes[0] == walk.bytes[1] > 0


def refused(error, match, **changed):
    given = {
        "problem": PROBLEM, "graph": GRAPH, "agents": agents(), "algorithm": ed.edpp(4.0), "x0": ZERO,
        "num_samples": 10,
    } | changed  # fmt: skip
    with pytest.raises(error, match=match):
        dd.walk(**given)


def test_wrong_arguments_are_named_before_any_process_starts(tmp_path):
    refused(TypeError, r"problem must be of type Problem", problem=1)
    refused(TypeError, r"algorithm must be of type Algorithm", algorithm="edpp")
    refused(ValueError, r"graph has 4 nodes, but there are 3 agents", graph=np.ones((4, 4)) - np.eye(4))
    refused(TypeError, r"agents must hold Agent", agents=[1, 2, 3])
    refused(TypeError, r"agents must be a list of Agent\(data\), got NoneType", agents=None)
    refused(ValueError, r"tokens must be between 1", tokens=0)
    refused(ValueError, r"tokens must differ from each other", tokens=[1, 1])
    refused(ValueError, r"agents: two of them have the name 'a'", agents=agents(name="a"))
    refused(ValueError, r"num_samples=10 must be a multiple of local_rounds=3", local_rounds=3)
    refused(ValueError, r"local_rounds must be between 1", local_rounds=0)
    shown = {
        "algorithm": ed.rdpp(),
        "local_rounds": 2,
        "agents": [*agents(2), *agents(1, name="c", privacy=dd.Privacy(1.0))],
    }
    refused(
        ValueError, r"local_rounds > 1 with RDPP.* sends the last answers of all .*, and c asks for privacy", **shown
    )
    refused(ValueError, r"quorum must be between 1 and 3, got 4", quorum=4)
    refused(ValueError, r"patience must be > 0", patience=0)
    refused(ValueError, r"combine must be 'mean' or None", combine="median")
    refused(ValueError, r"record must hold multiples of local_rounds=2", record=[3], local_rounds=2)
    refused(
        ValueError, r"paths must hold agents between 0 and 2, got 0 to 7", paths=np.full(10, 7) * (np.arange(10) > 0)
    )
    for length in (4, 11):
        refused(ValueError, r"whole numbers of shape \(tokens, hops\) = \(1, 10\)", paths=np.zeros(length, int))
    refused(ValueError, r"x0 lies outside Ball", x0=ZERO + 5)
    refused(ValueError, r"the folder of .* does not exist", checkpoint=tmp_path / "no" / "file")
    with files.locked(tmp_path / "walk.npz", "checkpoint"):
        wanted = r"checkpoint .*walk\.npz is in use by another run in this process"
        refused(ValueError, wanted, checkpoint=tmp_path / "walk.npz")
    refused(ValueError, r"average must be", average="median")
    with pytest.raises(ValueError, match=r"a file must end in one of"):
        dd.Agent("data.csv")
    with pytest.raises(TypeError, match=r"privacy must be a Privacy"):
        dd.Agent(ZERO, privacy=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clip must be a number or have the keys"):
        dd.Privacy({"loss": 1.0})
    with pytest.raises(ValueError, match=r"resources\['site:a'\] must be > 0"):
        dd.Agent(ZERO, resources={"site:a": 0})
    with pytest.raises(ValueError, match=r"agents is empty"):
        dd.Network([])


@pytest.mark.parametrize("local_rounds", [1, 2])
def test_a_token_that_diverges_is_nobodys_fault(network, local_rounds):
    problem = ed.Problem(lambda x, xi: jnp.sum(x), lambda x, xi: x[:1] + 1.5e308, ed.Ball(1.0))
    with pytest.raises(
        ed.NonFiniteError, match=r"token 0: .* not finite after hop [1-9], .* the answer of agent [0-2]"
    ):
        dd.walk(EDPP, problem, GRAPH, network, x0=ZERO, num_samples=20, local_rounds=local_rounds)


def test_a_sum_that_overflows_is_said(network):
    problem = ed.Problem(lambda x, xi: 5e307 + jnp.sum(x), lambda x, xi: x[:1] - 0.5, ed.Ball(1.0))
    with pytest.raises(ed.NonFiniteError, match=r"token 0: a sum of losses or constraints is not finite at hop 4"):
        dd.walk(EDPP, problem, GRAPH, network, x0=ZERO, num_samples=20)
