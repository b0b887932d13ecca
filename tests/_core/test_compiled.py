"""What is compiled for the user's functions lives as long as they do, and no longer."""

import dataclasses
import functools
import gc
import os
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift._core import compiled, tree
from ergodrift._core.compiled import KEPT, Held, Value, held

Z = np.random.default_rng(0).normal(size=(40, 2))
SERIES, OTHER = ed.SeriesSource(Z), ed.SeriesSource(Z[::-1] * 0.9)


def long_lived_loss(x, xi):
    return jnp.sum((x - xi) ** 2)


class Model:
    def __init__(self, k):
        self.k = k

    def loss(self, x, xi):
        return jnp.sum((x - xi) ** 2) + self.k[0]

    def constraints(self, x, xi):
        return x * xi - self.k[:2] - 1


def closures(k):
    return lambda x, xi: jnp.sum((x - xi) ** 2) + k[0], lambda x, xi: x * xi - k[:2] - 1


def jitted(k):
    return tuple(map(jax.jit, closures(k)))


def partials(k):
    def loss(k, x, xi):
        return jnp.sum((x - xi) ** 2) + k[0]

    return functools.partial(loss, k), functools.partial(lambda k, x, xi: x * xi - k[:2] - 1, k)


def methods(k):
    model = Model(k)
    return model.loss, model.constraints


def half_new(k):
    """The loss stays for ever, the constraints go."""
    return long_lived_loss, closures(k)[1]


def recursive(k):
    """A function that knows itself is in a cycle."""

    def loss(x, xi, depth=1):
        return jnp.sum((x - xi) ** 2) + k[0] if depth == 0 else loss(x, xi, depth - 1)

    return loss, closures(k)[1]


WAYS = [closures, jitted, partials, methods, half_new, recursive]


def everything(problem):
    """One of each entry that compiles something for the problem."""
    x0 = jnp.zeros(2)
    result = ed.run(ed.edpp(2.0), problem, SERIES, x0=x0, record=3)
    problem.feedback(x0, x0)
    result.certify(problem, OTHER, method="batch")
    reference = ed.solve_reference(problem, SERIES, x0=x0)
    ed.metrics.evaluate(result, problem, SERIES, reference)
    ed.diagnose(SERIES, problem, np.zeros(2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [np, jnp])
def test_functions_and_what_they_have_captured_are_freed(way, kind):
    k = kind.zeros(1000) + 0.1
    loss, constraints = functions = way(k)
    watched = [weakref.ref(k), weakref.ref(functions[1].__self__ if way is methods else functions[1])]
    problem = ed.Problem(loss, constraints, ed.Ball(2.0))
    if way is closures:
        everything(problem)
    problem.feedback(jnp.zeros(2), jnp.ones(2))
    del k, functions, loss, constraints, problem
    gc.collect()
    assert [one() for one in watched] == [None, None]


def test_the_link_of_a_linear_model_is_freed():
    def link(k):
        return lambda margins: (margins - k[0]) ** 2

    k = np.full(1000, 0.5)
    model = ed.LinearModel(link(k), ed.Ball(1.0))
    data = model.data([Z], normals=np.ones((1, 1, 2)), limits=[0.5])
    ed.run(ed.dpp(), model, ed.IIDSource(data), x0=jnp.zeros(2), num_samples=5)
    watched = weakref.ref(k), weakref.ref(model.link)
    del k, model, data
    gc.collect()
    assert [one() for one in watched] == [None, None]


def counted():
    """Functions that know how often they were traced."""
    calls = []

    def loss(x, xi):
        calls.append("loss")
        return jnp.sum((x - xi) ** 2)

    return loss, lambda x, xi: x * xi - 1, calls


def test_the_same_functions_are_not_traced_again():
    """Another problem, other hyperparameters, other data and other points: the same compiled loop."""
    loss, constraints, calls = counted()
    first = 0
    for number in range(3):
        problem = ed.Problem(loss, constraints, ed.Ball(1.0 + number))
        source = ed.SeriesSource(Z + number)
        ed.run(ed.edpp(2.0 + number), problem, source, x0=jnp.full(2, 0.1 * number), record=3)
        ed.certify(problem, np.full(2, 0.1), source, method="batch")
        if number == 0:
            first = len(calls)
    assert len(calls) == first


def test_methods_of_one_object_are_the_same_functions():
    model, traced = Model(np.zeros(9)), []
    model.__class__ = type("Counted", (Model,), {"loss": lambda self, x, xi: traced.append(1) or jnp.sum(x * xi)})
    for _ in range(3):
        ed.Problem(model.loss, model.constraints, ed.Ball(1.0)).feedback(jnp.zeros(2), jnp.ones(2))
    assert len(traced) == 1


def test_clearing_the_caches_of_jax_leaves_everything_working():
    loss, constraints, calls = counted()
    problem = ed.Problem(loss, constraints, ed.Ball(1.0))
    problem.feedback(jnp.zeros(2), jnp.ones(2))
    jax.clear_caches()
    before = len(calls)
    problem.feedback(jnp.zeros(2), jnp.ones(2))
    assert len(calls) > before  # compiled anew, so what there was is gone


@dataclasses.dataclass(frozen=True)
class Power:
    """A callable that is a value: equal ones are one and the same function."""

    exponent: int

    def __call__(self, x, xi):
        return jnp.sum(jnp.abs(x - xi) ** self.exponent)


class Slotted:
    __slots__ = ()

    def __call__(self, x, xi):
        return jnp.sum(x * xi)


def test_what_stands_for_a_function():
    loss, constraints = closures(np.zeros(3))
    model = Model(np.zeros(3))
    assert held(loss) is held(loss) is not held(constraints)
    assert held(loss)() is loss
    assert repr(held(loss)) == repr(loss)
    assert held(model.loss) is held(model.loss)
    assert held(model.loss)() == model.loss
    assert held(model.loss) is not held(Model(model.k).loss)
    assert isinstance(held(functools.partial(loss, xi=1)), Held)
    assert isinstance(held(jax.jit(loss)), Held)
    assert held(Power(2)) == held(Power(2)) != held(Power(3))
    assert isinstance(held(Slotted()), Value)
    assert isinstance(held(np.add), Value)
    structure = jax.tree.structure(ed.Problem(lambda x, xi: x, lambda x, xi: xi, ed.Ball(1.0)))
    gc.collect()
    with pytest.raises(ReferenceError, match="keep the problem"):
        structure.unflatten([1.0])


@tree.module("function")
class Holder:
    function: object
    number: float


def test_callables_that_are_values_are_kept_in_bounds():
    table = compiled.Table(lambda holder, x: holder.function(x, holder.number))
    for exponent in [*range(KEPT + 5), KEPT + 4]:
        table.of(jax.tree.structure(Holder(Power(exponent), 1.0)))
    assert len(table.values) == KEPT
    assert not table.objects


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Equal:
    """Frozen, but equal to others of its kind whatever they hold."""

    number: float = dataclasses.field(compare=False)


def test_only_what_never_changes_is_taken_apart_once():
    flattened = []

    @jax.tree_util.register_pytree_node_class
    class Fixed(Holder):
        def tree_flatten(self):
            flattened.append(1)
            return [self.number], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return Holder(None, *children)

    times = compiled.compiled()(lambda subject, x: jax.tree.leaves(subject)[0] * x)
    fixed = Fixed(None, 2.0)
    assert [float(times(fixed, x)) for x in (1.0, 2.0, 3.0)] == [2, 4, 6]
    assert len(flattened) == 1
    changing = {"a": 2.0}
    assert float(times(changing, 3.0)) == 6
    changing["a"] = 5.0
    assert float(times(changing, 3.0)) == 15
    assert [float(times(Equal(number), 3.0)) for number in (1.0, 2.0)] == [3, 6]
    watched = weakref.ref(fixed)
    del fixed
    gc.collect()
    assert watched() is None


def test_numbers_keep_their_digits_and_their_type_in_each_precision():
    times = compiled.compiled()(lambda problem, x: problem.geometry.radius * x)
    problem = ed.Problem(*closures(np.zeros(3)), ed.Ball(1 / 3))
    for wide, kind in [(False, np.float32), (True, np.float64), (False, np.float32), (True, np.float64)]:
        with jax.enable_x64(wide):
            assert float(times(problem, jnp.ones((), kind))) == float(kind(1 / 3))
            assert times(problem, np.ones((), np.float32)).dtype == np.float32  # a Python number takes any precision


def test_the_numbers_of_a_problem_are_sent_to_the_device_once():
    times = compiled.compiled()(lambda problem, x: problem.geometry.upper * x)
    bounds = np.full(2, 3.0)
    box = ed.Box(-1.0, bounds)
    problem = ed.Problem(*closures(np.zeros(3)), box)
    x = jnp.ones(2)
    times(problem, x)
    with jax.transfer_guard_host_to_device("disallow"):
        assert times(problem, x).tolist() == [3, 3]
    bounds[:] = 4  # a box has bounds of its own
    assert times(problem, x).tolist() == [3, 3]
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(box.upper)[:] = 4


def test_arrays_that_may_change_are_read_at_every_call():
    times = compiled.compiled()(lambda holder, x: holder.number * x)
    number = np.array([2.0])
    view = number.view()
    view.flags.writeable = False  # what it looks at can change all the same
    for holder in (Holder(None, number), Holder(None, view)):
        number[0] = 2
        assert float(times(holder, jnp.ones(1))[0]) == 2
        number[0] = 5
        assert float(times(holder, jnp.ones(1))[0]) == 5


def test_the_first_call_may_be_a_traced_one():
    times = compiled.compiled()(lambda problem, x: problem.geometry.radius * x)
    problem = ed.Problem(*closures(np.zeros(3)), ed.Ball(3.0))
    assert float(jax.jit(lambda x: times(problem, x))(2.0)) == 6
    assert float(times(problem, 2.0)) == 6
    assert jax.vmap(lambda x: times(problem, x))(jnp.arange(2.0)).tolist() == [0, 3]


def test_another_object_at_the_same_address_is_not_taken_for_the_first():
    times = compiled.compiled()(lambda holder, x: holder.number * x)
    assert [float(times(Holder(None, float(number)), 1.0)) for number in range(50)] == list(range(50))


GROWTH = """
import sys
import jax.numpy as jnp, numpy as np, ergodrift as ed

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

z = np.random.default_rng(0).normal(size=(40, 2))
source, other = ed.SeriesSource(z), ed.SeriesSource(z[::-1] * 0.9)

def once(number):
    k, h = jnp.full(20_000, 0.1 * number), np.full(20_000, 0.1)
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2) + k[0], lambda x, xi: x * xi * h[:2] - 1, ed.Ball(2.0))
    problem.feedback(jnp.zeros(2), jnp.ones(2))
    if number % every == 0:
        result = ed.run(ed.dpp(), problem, source, x0=np.zeros(2), num_samples=4, record=2)
    if number % (20 * every) == 0:
        result.certify(problem, other, method="batch")
        ed.solve_reference(problem, source, x0=np.zeros(2))

count, every = map(int, sys.argv[1:])
for number in range(count + 6):
    if number == 6:
        before = memory()
    once(number)
print(memory() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_flat_over_a_thousand_new_functions():
    """All are compiled; a run, which takes longer to compile, is made of one in 25."""
    fresh = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}  # programs that XLA makes, not those it loads
    command = [sys.executable, "-c", GROWTH, "1000", "25"]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True, env=fresh).stdout)
    assert grown < 60  # MiB; it was 9 for each function
