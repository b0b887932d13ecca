"""The loop as a GPU's kernel, on a CPU (see host_kernels): it gives what the plain loop gives."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift._core import cuda
from ergodrift._core.cuda import launch
from ergodrift._core.products import by_sums
from ergodrift.engine import kernel, loop
from ergodrift.engine.carry import Place
from ergodrift.problems import fairness, synthetic
from host_kernels import launched, needs_compiler

PROBLEM, DATA, BOUNDS = fairness(*synthetic(points=90))
SOURCE = ed.MarkovSource(ed.MarkovChain(np.full((3, 3), 0.1) + 0.7 * np.eye(3)), DATA)
ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in [
        ed.edpp(3.0), ed.edpp(3.0, horizon=150), ed.mdpp(), ed.adpp(), ed.pd(400, BOUNDS.loss_grad, BOUNDS.constraints),
        ed.pd2(BOUNDS.loss_grad), ed.rdpp(), ed.wdpp(), ed.sdpp(), ed.edpp("auto"),
    ]
}  # fmt: skip
PROBLEM_STATE = ed.edpp(3.0).bind(PROBLEM).init(jnp.zeros(3), 2)
QUICK = {"EDPP-t"}  # the others take a compiler's time each


def huber(margins):
    size = jnp.abs(margins)
    return jnp.where(size < 1, size**2 / 2, size - 0.5)


def rows_of_groups(x, xi):
    score = jnp.mean(xi[2] * (xi[0] @ x))
    return jnp.stack([score - 0.1, -score - 0.1])


def table(dim):
    rng = np.random.default_rng(0)
    labels, groups = np.sign(rng.normal(size=(2, 3, 90)))
    return rng.normal(size=(3, 90, dim)), labels, groups


def model(link, domain, dim):
    problem, (features, labels, _) = ed.LinearModel(link, domain), table(dim)
    data = problem.data(
        list(features), list(labels), offsets=list(0.3 * labels), normals=features[:, :3], limits=[0.1, 0.2, 0.3]
    )
    return problem, ed.MarkovSource(SOURCE.chain, data), np.full(dim, 1 / dim)


def plain(dim):
    problem = ed.Problem(lambda x, xi: jnp.mean(jax.nn.softplus(-xi[1] * (xi[0] @ x))), rows_of_groups, ed.Ball(5.0))
    return problem, ed.MarkovSource(SOURCE.chain, table(dim)), np.zeros(dim)


def prepared_rows():
    """What is computed of the rows alone is kept, and looked up by the kernel."""

    def loss(x, xi):
        weights, rows = jax.nn.softmax(xi[2]), xi[0] - jnp.mean(xi[0], axis=0, keepdims=True)
        return jnp.sum(weights * jax.nn.softplus(-xi[1] * (rows @ x)))

    def constraints(x, xi):
        score = xi[0][:, 0] * x[0] + xi[0][:, 1] * x[1] + xi[0][:, 2] * x[2]
        return jnp.append(rows_of_groups(x, xi), jnp.mean(jnp.exp(xi[2]) * jax.nn.sigmoid(score)) - 1.0)

    return ed.Problem(loss, constraints, ed.Ball(5.0)), ed.MarkovSource(SOURCE.chain, table(3)), np.zeros(3)


PROBLEMS = {
    "plain": lambda: plain(3),
    "prepared rows": prepared_rows,
    "logistic, ball, 17": lambda: model("logistic", ed.Ball(2.0), 17),
    "logistic, ball, 64": lambda: model("logistic", ed.Ball(2.0), 64),
    "hinge, box": lambda: model("hinge", ed.Box(-1.0, 1.0), 4),
    "squared, simplex": lambda: model("squared", ed.Simplex(), 5),
    "Huber, ball": lambda: model(huber, ed.Ball(2.0), 3),
    "a product": lambda: (
        ed.Problem(
            lambda x, xi: jnp.mean(jnp.square(xi[0] @ x["w"] + x["b"] - xi[1])),
            lambda x, xi: jnp.stack([x["b"] - 0.1]),
            ed.Product({"w": ed.Simplex(), "b": ed.Box(-1.0, 1.0)}),
        ),
        ed.MarkovSource(SOURCE.chain, table(3)),
        {"w": np.full(3, 1 / 3), "b": np.array(0.0)},
    ),
}


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Runs take the way they take on a GPU, with kernels for the host or without any."""
    launches = []

    def go(algorithm, problem=PROBLEM, source=SOURCE, x0=(0.0, 0.0, 0.0), *, with_kernel, **options):
        each = loop.in_kernels() if with_kernel else loop.ALL
        monkeypatch.setattr(launch, "LAUNCH", lambda *call: launches.append(call) or launched(*call))
        monkeypatch.setattr(
            loop, "advance", lambda spec, *at, platform: loop._advance(spec, Place(*at[:4]), at[4], each)
        )
        loop.advance_on.cache_clear()
        launches.clear()
        x0 = jax.tree.map(np.asarray, x0 if isinstance(x0, dict) else np.asarray(x0))
        options = {"num_samples": 150, "seeds": 3, "record": [0, 1, 64, 65, 150], **options}
        result = ed.run(algorithm, problem, source, x0=x0, **options)
        assert bool(launches) == with_kernel
        return result

    yield go
    loop.advance_on.cache_clear()


def agree(one, other, rtol=1e-11):
    for name in ("rounds", "samples_used", "x", "x_mean", "queue", "loss_sum", "constraint_sum", "weights"):
        pairs = zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(getattr(other, name)), strict=True)
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=name)


@needs_compiler
@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in ALGORITHMS],
)
def test_the_kernel_is_the_plain_loop(name, as_on_gpu):
    agree(*(as_on_gpu(ALGORITHMS[name], with_kernel=with_kernel) for with_kernel in (True, False)))


@needs_compiler
@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "plain" else pytest.mark.slow) for n in PROBLEMS])
def test_every_domain_and_link(name, as_on_gpu):
    setting = PROBLEMS[name]()
    agree(*(as_on_gpu(ed.edpp(3.0), *setting, with_kernel=with_kernel) for with_kernel in (True, False)))


@needs_compiler
@pytest.mark.slow
@pytest.mark.x64("its digits are those of float64")
def test_given_levels_are_replayed_in_the_kernel(as_on_gpu):
    levels = np.random.default_rng(0).geometric(0.5, size=(3, 20))
    agree(*(as_on_gpu(ed.mdpp(), with_kernel=with_kernel, levels=levels) for with_kernel in (True, False)))


@needs_compiler
@pytest.mark.slow
@pytest.mark.x64("its digits are those of float64")
def test_given_paths_are_replayed_in_the_kernel(as_on_gpu):
    paths = np.asarray(SOURCE.paths(3, 150))
    agree(*(as_on_gpu(ed.edpp(3.0), with_kernel=with_kernel, paths=paths) for with_kernel in (True, False)))


@pytest.mark.x64("its digits are those of float64")
def test_side_by_side_is_one_after_the_other(as_on_gpu, monkeypatch):
    beside = as_on_gpu(ed.mdpp(), with_kernel=False)
    monkeypatch.undo()
    loop.advance_on.cache_clear()
    options = {"x0": np.zeros(3), "num_samples": 150, "seeds": 3, "record": [0, 1, 64, 65, 150]}
    agree(beside, ed.run(ed.mdpp(), PROBLEM, SOURCE, **options))


def test_what_no_kernel_can_do_goes_the_plain_way(monkeypatch):
    """A Cholesky factorisation in the loss; and data of which one seed needs more than a multiprocessor can read."""
    calls = []
    monkeypatch.setattr(launch, "LAUNCH", lambda *call: calls.append(call))
    monkeypatch.setattr(
        loop, "advance", lambda spec, *at, platform: loop._advance(spec, Place(*at[:4]), at[4], loop.in_kernels())
    )
    loop.advance_on.cache_clear()
    odd = ed.Problem(
        lambda x, xi: jnp.sum(jnp.linalg.cholesky(jnp.eye(2) + jnp.outer(x, x))), lambda x, xi: x[:1] - xi, ed.Ball(1.0)
    )
    result = ed.run(ed.edpp(2.0), odd, ed.IIDSource(np.ones(3)), x0=np.full(2, 0.1), num_samples=9)
    assert not calls
    assert np.isfinite(result.x).all()
    loop.advance_on.cache_clear()


@pytest.mark.parametrize(("count", "fits"), [(4, True), pytest.param(5, False, marks=pytest.mark.slow)])
def test_tables_of_edpp_auto_fit_for_four_constraints(count, fits, monkeypatch):
    def reached(*call):
        raise InterruptedError  # the kernel is written; it need not run

    monkeypatch.setattr(launch, "LAUNCH", reached)
    monkeypatch.setattr(
        loop, "advance", lambda spec, *at, platform: loop._advance(spec, Place(*at[:4]), at[4], loop.in_kernels())
    )
    loop.advance_on.cache_clear()
    problem = ed.Problem(
        lambda x, xi: jnp.mean(xi[1] * (xi[0] @ x)), lambda x, xi: x[0] * jnp.ones(count) - 0.1, ed.Ball(1.0)
    )
    source = ed.MarkovSource(SOURCE.chain, table(3))
    with contextlib.nullcontext() if not fits else pytest.raises(InterruptedError):
        ed.run(ed.edpp("auto"), problem, source, x0=np.zeros(3), num_samples=70, record=1)
    loop.advance_on.cache_clear()


def test_a_large_sample_of_one_seed_is_for_the_whole_device():
    def suits(seeds, rows):
        stream = SOURCE.stream()._replace(data=jax.ShapeDtypeStruct((3, rows, 10), np.float32))
        state = PROBLEM_STATE._replace(x=jax.ShapeDtypeStruct((seeds, 4), np.float32))
        return kernel.suits(loop.RunSpec(PROBLEM, None, stream, None), loop.Carry(state, *[None] * 6))

    assert suits(1, 2000)
    assert suits(1000, 10**6)
    assert not suits(1, 10**6)


def test_products_as_sums_are_the_same(monkeypatch):
    monkeypatch.setattr("ergodrift._core.products.LARGE", 4)
    rng = np.random.default_rng(0)
    a, x, y = (jnp.asarray(rng.normal(size=size)) for size in [(4, 3), 3, 4])

    def function(a, x, y):
        value, grad = jax.value_and_grad(lambda x: jnp.sum(jnp.tanh(a @ x) * y))(x)
        return value, grad, y @ a, jnp.tensordot(a, a, 2), a.T @ a

    for one, other in zip(by_sums(function)(a, x, y), function(a, x, y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert "dot_general" not in str(jax.make_jaxpr(by_sums(lambda a, x: a @ x))(a, x))


gpu = [pytest.mark.gpu, pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU; the same runs above")]


@pytest.mark.parametrize("name", [pytest.param(name, marks=gpu) for name in ALGORITHMS])
def test_a_real_gpu_gives_what_the_cpu_gives(name):
    """float64, 1,000 rounds, to 1e-9: SDPP too, as long as states change too often for its steps to outgrow 2 / L
    (`test_steps_beyond_two_over_the_curvature_magnify_roundings`)."""
    options = {"x0": np.zeros(3), "num_samples": 1000, "seeds": 3, "record": 20}
    with jax.default_device(jax.devices("cpu")[0]):
        expected = ed.run(ALGORITHMS[name], PROBLEM, SOURCE, **options)
    agree(ed.run(ALGORITHMS[name], PROBLEM, SOURCE, **options), expected, rtol=1e-9)


@pytest.mark.parametrize("name", [pytest.param(name, marks=gpu) for name in PROBLEMS])
@pytest.mark.parametrize("seeds", [2, 300])
def test_a_real_gpu_knows_every_domain_and_link(name, seeds, monkeypatch):
    def refused(*arguments):
        try:
            return fused(*arguments)
        except cuda.Unsupported as error:
            raise AssertionError(f"no kernel: {error}") from error

    fused = cuda.fused
    monkeypatch.setattr(cuda, "fused", refused)
    problem, source, x0 = PROBLEMS[name]()
    options = {"x0": x0, "num_samples": 200, "seeds": seeds, "record": 20}
    with jax.default_device(jax.devices("cpu")[0]):
        expected = ed.run(ed.edpp(3.0), problem, source, **options)
    agree(ed.run(ed.edpp(3.0), problem, source, **options), expected, rtol=1e-9)
