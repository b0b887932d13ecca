"""Seeds on a GPU, against a `lax.scan` written by hand; other algorithms; a small call; one large problem; correctness.

The paper's problem has 3 states of 2,000 rows. The floor of its logistic model: two special-function operations a row
(16 per clock and multiprocessor). The competitor is `by_hand` below: what a user of JAX would write, 25 lines, nothing
recorded. Prints tables and writes bench-results/gpu.json.

    python benchmarks/gpu.py [--only seeds plain linear algorithms call wide network difference] [--clock 1.98e9]
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import ergodrift as ed
from ergodrift.problems import fairness, synthetic

CHAIN = np.full((3, 3), 0.001) + 0.997 * np.eye(3)
LIMIT, TAU = 0.1, 333.3


def paper():
    """The paper's problem as a linear model."""
    problem, data, _ = fairness(*synthetic())
    return problem, ed.MarkovSource(ed.MarkovChain(CHAIN), data)


def table(dim, rows=2000, states=3):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(states, rows, dim)).astype(np.float32)
    labels = np.where(features[..., 0] + rng.normal(size=(states, rows)) > 0, 1, -1).astype(np.float32)
    return features, labels, rng.choice([-1.0, 1.0], size=(states, rows)).astype(np.float32)


def loss(x, xi):
    return jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x)))


def constraints(x, xi):
    v = jnp.mean(xi[2] * (xi[0] @ x))
    return jnp.stack([v - LIMIT, -v - LIMIT])


def plain(dim):
    """The same as plain functions: means over rows."""
    return ed.Problem(loss, constraints, ed.Ball(5.0)), ed.MarkovSource(ed.MarkovChain(CHAIN), table(dim))


def linear(dim):
    """The same as a `LinearModel`."""
    model, (features, labels, groups) = ed.LinearModel("logistic", ed.Ball(5.0)), table(dim)
    normals = np.einsum("sn,snd->sd", groups, features)[:, None] / groups.shape[1] * np.array([[1.0], [-1.0]])
    data = model.data(list(features), list(labels), normals=normals, limits=[LIMIT, LIMIT])
    return model, ed.MarkovSource(ed.MarkovChain(CHAIN), data)


@functools.partial(jax.jit, static_argnums=(2, 3))
def by_hand(key, data, seeds, rounds):
    """EDPP-t with nothing around it: derivatives by hand, states drawn beforehand, no records, no sums but that of x.

    Of several spellings that were tried the fastest: few features are written out, with more of them the products are
    those of matrices, for all states at once.
    """
    table, labels, groups = jnp.swapaxes(data[0], 1, 2), data[1], data[2]
    bounds, (dim, rows) = jnp.cumsum(jnp.asarray(CHAIN, jnp.float32), axis=1), table.shape[1:]

    def sample(x, state):
        if dim <= 8:
            a, y, z = table[state], labels[state], groups[state]
            scores = sum(x[k] * a[k] for k in range(dim))
            slopes = -y * jax.nn.sigmoid(-y * scores)
            grad, jac = (jnp.stack([jnp.mean(w * a[k]) for k in range(dim)]) for w in (slopes, z))
            return grad, jnp.mean(z * scores), jac
        scores, here = jnp.einsum("sdn,d->sn", table, x), (jnp.arange(3) == state).astype(jnp.float32)
        slopes = -labels * jax.nn.sigmoid(-labels * scores) * here[:, None]
        jac = jnp.einsum("sdn,sn->sd", table, groups) / rows  # a constant, computed once
        return jnp.einsum("sdn,sn->d", table, slopes) / rows, jnp.mean(groups * scores, axis=1) @ here, here @ jac

    def one(key):
        def turn(carry, drawn):
            x, queue, state, t, total = carry
            grad, v, row = sample(x, state)
            value, jac, proximity = jnp.stack([v - LIMIT, -v - LIMIT]), jnp.stack([row, -row]), TAU * t
            y = x - (jnp.sqrt(proximity) * grad + queue @ jac) / (2 * proximity)
            y = y * (5.0 / jnp.maximum(jnp.linalg.norm(y), 5.0))
            queue = jnp.maximum(queue + value + jac @ (y - x), 0)
            state = jnp.minimum(jnp.sum(drawn > bounds[state]), 2)
            return (y, queue, state, t + 1, total + x), None

        start = (jnp.zeros(dim), jnp.zeros(2), 0, jnp.float32(1), jnp.zeros(dim))
        return jax.lax.scan(turn, start, jax.random.uniform(key, (rounds,)))[0][-1] / rounds

    return jax.vmap(one)(jax.random.split(key, seeds))


def seconds(function, times=3):
    """The best of several calls, compilation apart."""
    jax.block_until_ready(function())
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(function())
        spent.append(time.perf_counter() - began)
    return min(spent)


def rate(setting, seeds, rounds, algorithm=None):
    """Million seed-rounds (of MDPP, seed-samples) a second."""
    problem, source = setting
    algorithm = algorithm or ed.edpp(TAU)
    x0 = jnp.zeros(jax.tree.leaves(source.example)[0].shape[-1 if not isinstance(problem, ed.LinearModel) else 0])
    x0 = x0.astype(jnp.float32)

    def go():
        return ed.run(algorithm, problem, source, x0=x0, num_samples=rounds, seeds=seeds, record=1).x

    return seeds * rounds / seconds(go) / 1e6


def hand_rate(dim, seeds, rounds):
    data = jax.tree.map(jnp.asarray, table(dim))
    return seeds * rounds / seconds(lambda: by_hand(jax.random.key(0), data, seeds, rounds)) / 1e6


def rounds_for(seeds, dim):
    """A second or so."""
    return {1: 50_000, 256: 40_000, 4096: 20_000}.get(seeds, 5_000) // (4 if dim > 8 else 1)


def against_hand(dim, setting, counts):
    found = []
    for seeds in counts:
        rounds = rounds_for(seeds, dim)
        ours, hand = (
            rate(setting, seeds, rounds),
            hand_rate(dim, seeds, max(min(rounds, 2_000_000 // seeds), 100) if seeds > 1 else 5_000),
        )
        found.append({"seeds": seeds, "ours": ours, "by_hand": hand, "ratio": ours / hand})
        print(f"{seeds:6} seeds: {ours:9.2f} M/s, by hand {hand:9.2f}, ratio {ours / hand:.2f}", flush=True)
    return found


def seeds(options):
    """The paper's problem at many seeds, against the roofline of the special-function units."""
    floor = jax.devices()[0].core_count * 16 * options.clock / (2 * 2000) / 1e6
    found = []
    for count in (1, 256, 4096, 32768):
        ours = rate(paper(), count, rounds_for(count, 3))
        found.append({"seeds": count, "ours": ours, "of_roofline": ours / floor})
        print(f"{count:6} seeds: {ours:9.2f} M/s, {ours / floor:.0%} of the roofline", flush=True)
    return found


def algorithms(options):
    """Other algorithms, domains and links at 4,096 seeds, as shares of EDPP-t on the paper's problem."""
    base = rate(paper(), 4096, 20_000)
    found = {"EDPP-t": base}
    for algorithm in [ed.rdpp(), ed.wdpp(), ed.edpp("auto"), ed.mdpp(), ed.sdpp(), ed.adpp()]:
        found[algorithm.name] = rate(paper(), 4096, 20_000, algorithm)
    problem, source = paper()
    ball, box = problem.geometry, ed.Box(-5.0, 5.0)
    others = {"box": ("logistic", box), "hinge": ("hinge", ball), "squared": ("squared", ball), "Huber": (huber, ball)}
    for name, (link, domain) in others.items():
        found[name] = rate((ed.LinearModel(link, domain), source), 4096, 20_000)
    for name, value in found.items():
        print(f"{name:>10}: {value:9.2f} M/s, {value / base:.0%} of EDPP-t", flush=True)
    return found


def huber(margins):
    size = jnp.abs(margins)
    return jnp.where(size < 1, size**2 / 2, size - 0.5)


def call(options):
    """Milliseconds of a run of 10 samples, compiled before."""
    problem, source = paper()

    def go():
        return ed.run(ed.edpp(TAU), problem, source, x0=jnp.zeros(3), num_samples=10, seeds=1, record=1).x

    spent = 1e3 * seconds(go, 10)
    print(f"a run of 10 samples: {spent:.1f} ms", flush=True)
    return spent


def per_round(problem, source, x0, algorithm, few=20, many=80):
    """Seconds a round: of a longer run less a shorter one."""

    def go(count):
        return ed.run(algorithm, problem, source, x0=x0, num_samples=count, seeds=1, record=1).x

    return (seconds(lambda: go(many), 2) - seconds(lambda: go(few), 2)) / (many - few)


def row_loss(x, xi):
    return jax.nn.softplus(-xi[1] * (xi[0] @ x))


def row_limits(x, xi):
    return jnp.stack([jnp.sum(x[:10]) - 1.0])


def wide(options):
    """10^6 dense features, batches of 1,024 rows: a round against the time to read the batch twice."""
    rows, dim = 1024, 10**6
    features = jnp.zeros((options.batches * rows, dim), jnp.float32)
    fill = jax.jit(lambda table, part, at: jax.lax.dynamic_update_slice(table, part, (at, 0)), donate_argnums=0)
    for number in range(options.batches):
        part = jax.random.normal(jax.random.fold_in(jax.random.key(0), number), (rows, dim), jnp.float32)
        features = fill(features, part, number * rows)
    labels, x0 = jnp.sign(jax.random.normal(jax.random.key(1), (len(features),))), jnp.zeros(dim, jnp.float32)
    copy = jax.jit(lambda table: table[:rows] + 1)
    copied = seconds(lambda: copy(features)) / 2  # to read it once
    gradient = jax.jit(jax.grad(lambda x, xi: jnp.mean(jax.vmap(row_loss, (None, 0))(x, xi))))
    bare = seconds(functools.partial(gradient, x0, (features[:rows], labels[:rows])))
    source = ed.SeriesSource((features, labels), batch=rows, epochs=200)
    ours = per_round(ed.Problem(row_loss, row_limits, ed.Ball(5.0)), source, x0, ed.edpp(1.0))
    found = {"data_gb": features.nbytes / 1e9, "ours_ms": 1e3 * ours, "read_twice_ms": 2e3 * copied,
             "bare_gradient_ms": 1e3 * bare, "of_roofline": 2 * copied / ours}  # fmt: skip
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    return found


WIDTHS = (1024, 2400, 2400, 700, 10)  # 10^7 parameters


def scores(x, features):
    for number, (weights, bias) in enumerate(x):
        features = features @ weights + bias
        features = jax.nn.relu(features) if number < len(x) - 1 else features
    return features


def net_loss(x, xi):
    return -jnp.mean(jnp.sum(xi[1] * jax.nn.log_softmax(scores(x, xi[0])), axis=-1))


def net_limits(x, xi):
    return jnp.mean(jax.nn.softmax(scores(x, xi[0])), axis=0)[:1] - 0.2


def network(options):
    """A network of 10^7 parameters, batches of 1,024 rows: a round against the bare gradients."""
    keys = jax.random.split(jax.random.key(0), len(WIDTHS) + 1)
    x0 = [(jax.random.normal(key, (n, m), jnp.float32) / n**0.5, jnp.zeros(m, jnp.float32))
          for key, n, m in zip(keys, WIDTHS, WIDTHS[1:], strict=False)]  # fmt: skip
    features = jax.random.normal(keys[-1], (8, 1024, WIDTHS[0]), jnp.float32)
    labels = jax.nn.one_hot(jax.random.randint(keys[-2], (8, 1024), 0, WIDTHS[-1]), WIDTHS[-1])
    one = features[0], labels[0]

    @jax.jit
    def bare(x, xi):
        value, pull = jax.vjp(lambda x: net_limits(x, xi), x)
        return jax.value_and_grad(net_loss)(x, xi), value, pull(jnp.ones(1))

    alone = seconds(lambda: [bare(x0, one) for _ in range(20)], 5) / 20
    chain = ed.MarkovSource(ed.MarkovChain(np.full((8, 8), 1 / 8)), (features, labels))
    ours = per_round(ed.Problem(net_loss, net_limits, ed.Ball(100.0)), chain, x0, ed.edpp(1.0), 100, 1100)
    found = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(x0)), "ours_ms": 1e3 * ours,
             "bare_gradients_ms": 1e3 * alone, "of_bare": alone / ours}  # fmt: skip
    print(", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    return found


def _largest(one, other):
    """The largest difference between two results."""
    pairs = zip(*(jax.tree.leaves((r.x, r.x_mean, r.queue, r.loss_sum)) for r in (one, other)), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def difference(options):
    """The largest difference between CPU and GPU over 1,000 rounds in float64, all algorithms."""
    worst = {}
    with jax.enable_x64(True):
        problem, source = paper()
        paths, bounds = np.asarray(source.paths(4, 1000)), fairness(*synthetic())[2]

        def from_(x0: np.ndarray, algorithm: ed.Algorithm, platform: str) -> ed.Result:
            with jax.default_device(jax.devices(platform)[0]):
                return ed.run(algorithm, problem, source, x0=x0, num_samples=1000, seeds=4, record=100, paths=paths)

        for algorithm in [
            ed.edpp(TAU), ed.edpp(TAU, horizon=1000), ed.dpp(), ed.mdpp(), ed.adpp(), ed.rdpp(), ed.wdpp(),
            ed.pd(1000, bounds.loss_grad, bounds.constraints), ed.pd2(bounds.loss_grad), ed.edpp("auto"), ed.sdpp(),
        ]:  # fmt: skip
            there = from_(np.zeros(3), algorithm, "cpu")
            if algorithm.name == "SDPP":  # what a rounding alone does to it
                worst["SDPP, CPU, from 1e-15 beside"] = _largest(there, from_(np.full(3, 1e-15), algorithm, "cpu"))
            worst[algorithm.name] = _largest(there, from_(np.zeros(3), algorithm, "gpu"))
    print("float64, 1,000 rounds, largest difference to the CPU:", worst, flush=True)
    return worst


SECTIONS = {
    "seeds": seeds,
    "plain": lambda options: against_hand(3, plain(3), (1, 256, 4096, 32768)),
    "linear": lambda options: against_hand(30, linear(30), (1, 256, 4096)),
    "algorithms": algorithms,
    "call": call,
    "wide": wide,
    "network": network,
    "difference": difference,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--clock", type=float, default=1.98e9, help="of a multiprocessor, Hz")
    parser.add_argument("--batches", type=int, default=12, help="of 4 GB each, of the problem with 10^6 features")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit(f"no GPU here, only {device.device_kind}")
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"device": device.device_kind, "jax": jax.__version__}
    for name in options.only:
        print(f"-- {name}", flush=True)
        report[name] = SECTIONS[name](options)
    (options.out / "gpu.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
