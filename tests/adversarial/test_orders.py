"""Every public entry after every other, in both precisions, whatever constants the user's functions hold.

What goes wrong here goes wrong between two traces of the same functions, so each case has functions of its own, and an
order of all entries together with its reverse has every entry traced before and after every other.
"""

import contextlib
import functools
import itertools
import operator
import random

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import ergodrift as ed
from ergodrift.data.expectation import expectations

Z = np.random.default_rng(0).normal(size=(96, 2))
SERIES, OTHER = ed.SeriesSource(Z), ed.SeriesSource(Z[::-1] * 0.9)
SCALES = np.array([0.3, 0.1])
MODULE_LEVEL = np.array([0.3, 0.1])


class Scaled:
    """Functions that are methods, with their constants in the object."""

    def __init__(self, scales):
        self.scales = scales

    def loss(self, x, xi):
        return jnp.sum((x - xi * self.scales) ** 2)

    def constraints(self, x, xi):
        return x * (xi * self.scales) - self.scales / 9

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x, xi):
        return self.constraints(x, xi)


def plain(scales):
    """As closures over whatever the scales are."""
    return lambda x, xi: jnp.sum((x - xi * scales) ** 2), lambda x, xi: x * (xi * scales) - scales / 9


def with_default(scales):
    def loss(x, xi, k=scales):
        return jnp.sum((x - xi * k) ** 2)

    def constraints(x, xi, k=scales):
        return x * (xi * k) - k / 9

    return loss, constraints


def with_partial(scales):
    def loss(k, x, xi):
        return jnp.sum((x - xi * k) ** 2)

    def constraints(k, x, xi):
        return x * (xi * k) - k / 9

    return functools.partial(loss, scales), functools.partial(constraints, scales)


def with_methods(scales):
    return Scaled(scales).loss, Scaled(scales).constraints


def with_jit(scales):
    loss, constraints = plain(scales)
    return jax.jit(loss), jax.jit(constraints)


def with_jitted_method(scales):
    return Scaled(scales).loss, Scaled(scales).jitted


def with_inner_transformations(scales):
    inner = jax.jit(lambda xi: jax.lax.map(lambda pair: pair[0] * pair[1], (xi, scales + 0 * xi)))

    @jax.custom_jvp
    def square(x):
        return x**2 * (scales / scales)

    square.defjvp(lambda primals, tangents: (square(*primals), 2 * primals[0] * tangents[0] * (scales / scales)))
    return lambda x, xi: jnp.sum(square(x - inner(xi))), lambda x, xi: x * inner(xi) - scales / 9


def with_globals(scales):
    del scales
    return (
        lambda x, xi: jnp.sum((x - xi * MODULE_LEVEL) ** 2),
        lambda x, xi: x * (xi * MODULE_LEVEL) - MODULE_LEVEL / 9,
    )


PLACES = [
    plain, with_default, with_partial, with_methods, with_jit, with_jitted_method, with_inner_transformations,
    with_globals,
]  # fmt: skip
KINDS = {
    "numpy": lambda: SCALES.copy(),
    "numpy float32": lambda: SCALES.astype(np.float32),
    "numpy 0-d": lambda: np.array(0.3),
    "numpy scalar": lambda: np.float64(0.3),
    "numpy int": lambda: np.array([3, 1]),
    "numpy int scalar": lambda: np.int64(3),
    "numpy read-only view": lambda: np.broadcast_to(SCALES, (4, 2))[1],
    "jnp": lambda: jnp.asarray(SCALES),
    "jnp int": lambda: jnp.array([3, 1]),
    "python": lambda: 0.3,
    "python int": lambda: 3,
}


def run_of(problem):
    return ed.run(ed.edpp(2.0), problem, SERIES, x0=np.zeros(2), record=4)


def online(problem):
    method = ed.edpp(2.0).bind(problem)
    state = method.init(jnp.zeros(2), 2)
    for xi in Z[:3]:
        state, _ = method.step(state, problem.feedback(state.x, jnp.asarray(xi)))
    return state.x


def certificate_numbers(certificate):
    return [certificate.estimate, certificate.lower, certificate.upper]


def reference_numbers(problem):
    return list(ed.solve_reference(problem, SERIES, x0=np.zeros(2))[:4])


X = np.array([0.2, -0.1])

ENTRIES = {
    "run": lambda p: [run_of(p).solution, run_of(p).loss_sum],
    "auto": lambda p: [len(ed.auto(p, SERIES, x0=X).reason)],
    "solve_reference": reference_numbers,
    "certify": lambda p: certificate_numbers(ed.certify(p, X, OTHER, method="batch")),
    "Result.certify": lambda p: certificate_numbers(run_of(p).certify(p, OTHER, method="batch")),
    "diagnose": lambda p: [ed.diagnose(SERIES, p, X).series],
    "Monitor": lambda p: certificate_numbers(ed.Monitor(p, X, tau_mix=1, bounds=(-50, 50)).update(Z)),
    "feasibility": lambda p: [ed.feasibility(p, SERIES, x0=np.zeros(2)).worst],
    "Result.feasibility": lambda p: [run_of(p).feasibility().slope],
    "evaluate": lambda p: list(ed.metrics.evaluate(run_of(p), p, SERIES, ed.solve_reference(p, SERIES, x0=X))),
    "regret": lambda p: [ed.metrics.regret(run_of(p), p, SERIES)],
    "within_theory": lambda p: [entry.value for entry in run_of(p).within_theory().entries],
    "online": lambda p: [online(p)],
}


def setting(wide):
    """As users have JAX, who write x * np.array([0.3, 0.1]): that is a promotion."""
    both = contextlib.ExitStack()
    both.enter_context(jax.enable_x64(wide))
    both.enter_context(jax.numpy_dtype_promotion("standard"))
    return both


def ask(name, problem, wide):
    with setting(wide):
        return [np.asarray(number) for number in ENTRIES[name](problem)]


def made(place=plain, kind="numpy"):
    with setting(wide=False):  # a float64 array of JAX's own is not for whoever then switches 64-bit numbers off
        loss, constraints = place(KINDS[kind]())
        return ed.Problem(loss, constraints, ed.Ball(2.0))


def same(found, expected, said):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=said)


def mixed():
    """A problem with a constant of every kind in its functions."""
    with setting(wide=False):
        few = [KINDS[kind]() for kind in KINDS]

    def loss(x, xi, first=few[0]):
        return jnp.sum((x - xi * first) ** 2) + jnp.sum(functools.reduce(operator.add, few[1:]) * 0.1)

    def constraints(x, xi):
        return x * (xi * functools.reduce(operator.add, few)) * 0.1 - few[0] / 9 - MODULE_LEVEL

    return ed.Problem(loss, jax.jit(constraints), ed.Ball(2.0))


@pytest.mark.parametrize("wide", [False, True], ids=["x64 off", "x64 on"])
def test_every_entry_before_and_after_every_other(wide):
    forward = mixed()
    answers = {name: ask(name, forward, wide) for name in ENTRIES}
    backward = mixed()
    for name in reversed(ENTRIES):
        same(ask(name, backward, wide), answers[name], name)


def test_precision_may_change_between_calls():
    """Each entry in one precision, the other and again the first; a third problem begins with the other one."""
    problem, other = mixed(), mixed()
    for name in ("run", "solve_reference", "certify", "diagnose", "online"):
        narrow, wide, again = (ask(name, problem, wide) for wide in (False, True, False))
        same(narrow, again, name)
        same(ask(name, other, True), wide, name)
        same(ask(name, other, False), narrow, name)
        for one, two in zip(narrow, wide, strict=True):
            np.testing.assert_allclose(one, two, rtol=2e-3, atol=2e-3, err_msg=name)


def test_the_entries_agree_with_each_other_and_with_numpy():
    """At one point: f = mean |x - k xi|^2 and g = mean x k xi - k / 9, to float64 with 64-bit numbers on and off."""
    for wide in (False, True):
        problem = made()
        with setting(wide):
            run_of(problem)  # so that something was traced in the caller's precision before
            found = ed.certify(problem, X, SERIES, method="batch")
            losses, constraints = expectations(problem, SERIES, X)
            reference = ed.solve_reference(problem, SERIES, x0=X)
            value, rows = expectations(problem, SERIES, reference.x)
        loss = np.mean(np.sum((X - Z * SCALES) ** 2, axis=1))
        limits = (X * Z * SCALES - SCALES / 9).mean(axis=0)
        np.testing.assert_allclose([losses, *constraints], [loss, *limits], rtol=1e-13)
        np.testing.assert_allclose(found.estimate, [*limits, loss][: len(found.estimate)], rtol=1e-13)
        np.testing.assert_allclose([reference.value, *reference.constraints], [value, *rows], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_constants_of_every_kind(kind):
    """Traced in the caller's precision, then in float64, then online in the caller's, and the other way round."""
    first, second = made(kind=kind), made(kind=kind)
    names = ["online", "certify"]
    answers = {name: ask(name, first, False) for name in names}
    for name in reversed(names):
        same(ask(name, second, False), answers[name], f"{kind}: {name}")


@pytest.mark.parametrize("place", PLACES)
def test_constants_in_every_place(place):
    first, second = made(place), made(place)
    names = ["online", "certify"]
    answers = {name: ask(name, first, False) for name in names}
    for name in reversed(names):
        same(ask(name, second, False), answers[name], name)
    expected = ask("certify", made(), False)
    for one, other in zip(answers["certify"], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, err_msg="wherever the constants are, they are the same")


def test_a_users_own_trace_of_the_functions_changes_nothing():
    problem, expected = made(), ask("certify", made(), False)
    with setting(False):
        kept = jax.jit(problem.constraints), jax.make_jaxpr(problem.loss)(jnp.zeros(2), jnp.zeros(2))
        kept[0](jnp.zeros(2), jnp.zeros(2))
        same(ask("certify", problem, False), expected, "after the user's own jit")
        kept[0](jnp.zeros(2), jnp.zeros(2))


ANY = st.tuples(
    st.sampled_from(PLACES), st.sampled_from(sorted(KINDS)), st.permutations(["online", "certify", "diagnose"]),
    st.lists(st.booleans(), min_size=3, max_size=3),
)  # fmt: skip


@pytest.mark.slow
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(ANY)
def test_any_functions_in_any_order_and_precision(drawn):
    place, kind, order, wide = drawn
    if place is with_inner_transformations and "int" in kind:
        kind = "numpy"
    problem = made(place, kind)
    for name, precision in zip(order, wide, strict=True):
        same(ask(name, problem, precision), ask(name, made(place, kind), precision), f"{place.__name__}, {kind}")


QUARTERS = 4


@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(QUARTERS))
def test_all_ordered_pairs(quarter):
    """With constants of all kinds in the functions, each entry in either precision."""
    alone = functools.cache(lambda name, wide: ask(name, mixed(), wide))
    pairs = list(itertools.permutations(ENTRIES, 2))
    random.Random(0).shuffle(pairs)
    for number, (first, second) in enumerate(pairs[quarter::QUARTERS]):
        problem, wide = mixed(), (number % 2 == 0, number % 4 < 2)
        for name, precision in zip((first, second), wide, strict=True):
            same(ask(name, problem, precision), alone(name, precision), f"{first}, then {second}")
