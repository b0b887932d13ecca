"""Questions to all agents at one point: metrics, certificates, dependence and feasibility without moving data.

Every agent answers with values and slopes at x, once, as in a walk: what `Privacy` does to an answer it does here. From
these numbers the core's own functions compute what they would from the pooled data, whose samples (an agent's data as a
whole) enter `certify`, `diagnose` and `feasibility` through their values at x alone.
"""

from __future__ import annotations

import dataclasses
import statistics
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import chdtri

from ergodrift.data.chain import MarkovChain
from ergodrift.data.tables import IIDSource, MarkovSource
from ergodrift.distributed import wire
from ergodrift.distributed.agent import guards_of
from ergodrift.distributed.gathering import gather
from ergodrift.distributed.hosts import Crowd
from ergodrift.distributed.mail import Mail
from ergodrift.distributed.peers import Surveyed
from ergodrift.distributed.privacy import Privacy
from ergodrift.distributed.roster import Roster
from ergodrift.distributed.serialization import serialize
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine import loop
from ergodrift.geometry import Ball
from ergodrift.methods.average import Average
from ergodrift.methods.method import checked_point, zero_feedback
from ergodrift.problem import Problem
from ergodrift.solve.feasibility import Feasibility
from ergodrift.solve.feasibility import feasibility as least_worst
from ergodrift.trust.certificate import Certificate, verdicts
from ergodrift.types import PyTree

NOISE_ERROR = 0.05  # the probability that the noise of `Privacy` is larger than a feasibility allows for
CHUNK = 4096  # questions in one message
TOLERANCE, MOST_CUTS = 1e-7, 60  # of a feasibility: how exact, and how often all agents are asked at most


class Values(NamedTuple):
    """The tangent planes of every agent's functions at one point, along a leading axis of agents."""

    loss: np.ndarray
    loss_grad: PyTree
    constraints: np.ndarray
    constraint_jac: PyTree


class Survey(NamedTuple):
    """What all agents answered at x.

    Attributes:
        x: the point.
        values: (agents, ...) their values and slopes there; 0 where there was no answer.
        answered: (agents,) who did.
        missing: why not, by name.
        guards: (agents,) the `Privacy` of each one's answers.
    """

    x: PyTree
    values: Values
    answered: np.ndarray
    missing: dict[str, str]
    guards: list[Privacy | None]

    def problem(self, geometry: Any) -> Problem:
        """The problem with the tangent planes at x in the place of its functions: the same values and slopes there."""
        at = jax.tree.map(np.asarray, self.x)

        def change(slope: PyTree, x: PyTree) -> jax.Array:
            return _inner(slope, jax.tree.map(jnp.subtract, x, at))

        def loss(x: PyTree, planes: Values) -> Any:
            return planes.loss + change(planes.loss_grad, x)

        def constraints(x: PyTree, planes: Values) -> Any:
            return planes.constraints + jax.vmap(lambda slope: change(slope, x))(planes.constraint_jac)

        return Problem(loss, constraints, geometry)


def survey(network: Surveyed, problem: Problem, x: PyTree, patience: float) -> Survey:
    """Ask all agents once for their feedback at x."""
    x = checked_point(problem.geometry, x)
    run_spec = loop.RunSpec(problem, None, None, None, Average())  # type: ignore[arg-type]  # agents only answer
    with network.exclusive():
        # Only the shapes of this point count: so agents are ready for any other.
        wide, zero = bool(jax.config.read("jax_enable_x64")), jax.tree.map(jnp.zeros_like, x)
        spec = wire.on_host(WalkSpec(run_spec, zero, 1, 1, 1, wide, False))
        sent, walk = serialize(spec, network.key), uuid.uuid4().bytes
        peers = network if network.hosts is None else network.hosts
        came = gather(peers, walk, sent, patience, 1)
        like = zero_feedback(x, came.num_constraints)[:4]
        shape, question = wire.packed_shape(like), np.asarray(wire.pack(x))
        extra = 0 if network.hosts is None else question.itemsize
        sizes = question.nbytes + extra, wire.num_bytes(shape) + extra
        roster = Roster(peers, walk, sent, *sizes, 1, patience, came)
        people = roster if network.hosts is None else Crowd(roster, network.hosts)
        mail, agents = Mail(people, np.dtype(shape.dtype)), np.arange(len(network.names))
        words = np.zeros((len(network.names), shape.shape[0]), shape.dtype)
        answered = np.zeros(len(network.names), bool)
        waiting: dict[int, list[np.ndarray]] = {}
        of, agents = mail.peers(agents), agents[people.present]
        of = of[agents]
        for peer in np.unique(of).tolist():
            own = agents[of == peer]
            waiting[peer] = np.split(own, range(CHUNK, len(own), CHUNK))
        while waiting or mail.sent:
            for peer in [peer for peer in waiting if peer not in mail.busy]:
                own = waiting[peer].pop()
                if not waiting[peer]:
                    del waiting[peer]
                mail.send(peer, own, own, np.tile(question, (len(own), 1)))
            for message, rows, good in mail.receive():
                if rows is not None:
                    words[message.rows], answered[message.rows] = rows, good
        missing, guards = people.absences, guards_of(network.agents, people.ready)
    values = jax.vmap(lambda row: wire.unpack(row, like))(jnp.asarray(words))
    return Survey(x, Values(*jax.tree.map(lambda leaf: np.asarray(leaf, float), values)), answered, missing, guards)


class Evaluation(NamedTuple):
    """Metrics over a network.

    Attributes:
        mean: of each metric over the agents who answered, under the weights.
        agents: (agents,) each one's own; NaN where there was no answer.
        noise: the standard deviation that `Privacy` adds to each mean, where it is on.
        epsilon: what this one answer costs each agent with noise, at its delta.
        missing: who did not answer, and why.
    """

    mean: dict[str, float]
    agents: dict[str, np.ndarray]
    noise: float
    epsilon: dict[str, float]
    missing: dict[str, str]


def evaluate(
    network: Surveyed,
    metrics: Mapping[str, Callable[[PyTree, PyTree], object]],
    x: PyTree,
    weights: np.ndarray | None,
    patience: float,
) -> Evaluation:
    """Each metric(x, xi) of each agent's data, and their means."""
    names = sorted(metrics)

    def constraints(x: PyTree, xi: PyTree) -> jax.Array:
        kind = jax.tree.leaves(x)[0].dtype
        return jnp.stack([jnp.asarray(metrics[name](x, xi)).astype(kind) for name in names])

    reach = float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(x)))) + 1.0
    problem = Problem(lambda x, xi: 0.0 * _inner(x, x), constraints, Ball(reach))
    found = survey(network, problem, x, patience)
    law = np.ones(len(found.answered)) if weights is None else np.asarray(weights, float)
    if law.shape != found.answered.shape or (law < 0).any() or not law.sum() > 0:
        raise ValueError(f"weights must be {len(found.answered)} numbers >= 0, one for each agent, got {weights!r}")
    law = np.where(found.answered, law, 0)
    law = law / law.sum()
    rows = np.where(found.answered[:, None], found.values.constraints, np.nan)
    columns = dict(zip(names, rows.T, strict=True))
    mean = {name: float(np.nansum(law * column)) for name, column in columns.items()}
    return Evaluation(mean, columns, noise_of(found, law), costs(found, network.names), found.missing)


def noise_of(found: Survey, law: np.ndarray, part: str = "constraints") -> float:
    """The standard deviation of the noise in a mean of answers under this law."""
    scales = [guard.noise * dict(guard.bounds)[part] if guard else 0.0 for guard in found.guards]
    return float(np.sqrt(np.sum(np.square(law * np.array(scales)))))


def costs(found: Survey, names: list[str]) -> dict[str, float]:
    """epsilon of one answer of each agent with noise."""
    noisy = zip(names, found.guards, strict=True)
    return {name: privacy.epsilon(1) for name, privacy in noisy if privacy and privacy.noise > 0}


def table(found: Survey, chain: MarkovChain) -> MarkovSource:
    """The agents' values as the states of their walk."""
    if not found.answered.all():
        said = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        raise RuntimeError(f"{int((~found.answered).sum())} agents did not answer, and the law is over all: {said}")
    return MarkovSource(chain, found.values)


def widened(certificate: Certificate, found: Survey, law: np.ndarray) -> Certificate:
    """The certificate with the noise of `Privacy` accounted for, at the same confidence (Bonferroni)."""
    spread = noise_of(found, law)
    said = f"answers of {sum(map(bool, found.guards))} agents were clipped, which no interval can account for"
    if spread == 0:
        return dataclasses.replace(certificate, warnings=[*certificate.warnings, said])
    # Half of the error goes to the samples, half to the noise: the intervals were asked for at half the error.
    error = (1 - certificate.confidence) / max(len(certificate.lower), 1)
    more = statistics.NormalDist().inv_cdf(1 - error / 2) * spread
    lower, upper = certificate.lower - more, certificate.upper + more
    said += f"; intervals are {more:.3g} wider on each side for the noise"
    loss = statistics.NormalDist().inv_cdf(1 - (1 - certificate.confidence) / 2) * noise_of(found, law, "loss")
    return dataclasses.replace(
        certificate,
        lower=lower,
        upper=upper,
        verdict=verdicts(lower, upper),
        loss_lower=certificate.loss_lower - loss,
        loss_upper=certificate.loss_upper + loss,
        confidence=2 * certificate.confidence - 1,
        warnings=[*certificate.warnings, said],
    )


def mean_plane(found: Survey, law: np.ndarray) -> Values:
    """The tangent plane of the mean over the agents who answered, under a law."""
    law = np.where(found.answered, law, 0)
    if not law.any():
        raise RuntimeError(f"no agent of those that count answered: {found.missing}")
    return jax.tree.map(lambda leaf: np.tensordot(law / law.sum(), leaf, axes=1), found.values)


def feasibility(network: Surveyed, problem: Problem, law: np.ndarray, x0: PyTree, patience: float) -> Feasibility:
    """Cutting planes: the mean constraints are asked for at a point, and the next point is the best of all planes.

    Noise moves the height of every plane, and its slopes over the way across the domain: no more than `doubt` in all of
    them, with probability 1 - `NOISE_ERROR`.
    """
    x, cuts, best = x0, [], None
    while True:
        asked = survey(network, problem, x, patience)
        plane, doubt = mean_plane(asked, law), _doubt(asked, law, problem)
        at_zero = plane.constraints - np.array([_inner(slope, x) for slope in _each(plane.constraint_jac)])
        cuts.append((at_zero, plane.constraint_jac))
        if best is None or plane.constraints.max() < best[1].max():
            best = x, plane.constraints
        found = least_worst(_model(problem, cuts), IIDSource({"one": np.zeros(1)}), x0)
        size = 1 + max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(plane.constraint_jac))
        if best[1].max() - found.least <= TOLERANCE * size + sum(doubt) or len(cuts) == MOST_CUTS:
            break
        x = found.x
    rows = len(best[1])
    shares = np.asarray(found.multipliers).reshape(len(cuts), rows).sum(axis=0)
    worst, least = float(best[1].max()) + doubt[0], found.least - sum(doubt)
    conflict = tuple(sorted({row % rows for row in found.conflict}))
    verdict = found.verdict if worst - least <= TOLERANCE * size else "slater" if worst < 0 else "edge"
    if sum(doubt) > 0:
        verdict = "infeasible" if least > 0 else verdict if worst < 0 else "edge"
        conflict = conflict if least > 0 else ()
    return Feasibility(worst, best[0], best[1], shares, conflict, verdict, worst - least, least)


def _doubt(asked: Survey, law: np.ndarray, problem: Problem) -> tuple[float, float]:
    """How far noise may move a mean constraint at the point asked, and beyond that, what its plane says elsewhere."""
    law = np.where(asked.answered, law, 0) / law[asked.answered].sum()
    height, slope = noise_of(asked, law), noise_of(asked, law, "constraint_jac")
    if height == 0:
        return 0.0, 0.0
    error = NOISE_ERROR / (2 * MOST_CUTS * len(asked.values.constraints[0]))  # of one plane's height, and of its slope
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(asked.x))
    across = 2 * float(problem.geometry.reach(asked.x))
    return height * statistics.NormalDist().inv_cdf(1 - error / 2), slope * float(np.sqrt(chdtri(size, error))) * across


def _model(problem: Problem, cuts: list[tuple[np.ndarray, PyTree]]) -> Problem:
    """All planes as constraints."""

    def constraints(x: PyTree, _: PyTree) -> jax.Array:
        rows = [jnp.asarray(at_zero) + jax.vmap(lambda s: _inner(s, x))(slopes) for at_zero, slopes in cuts]
        return jnp.concatenate(rows)

    return Problem(lambda x, _: 0.0 * _inner(x, x), constraints, problem.geometry)


def _inner(one: PyTree, other: PyTree) -> Any:
    return sum(jnp.sum(jnp.asarray(a) * b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def _each(slopes: PyTree) -> list[PyTree]:
    """The slopes one by one."""
    rows = len(jax.tree.leaves(slopes)[0])
    return [jax.tree.map(lambda leaf, i=i: leaf[i], slopes) for i in range(rows)]
