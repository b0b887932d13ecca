"""What a function computes: the same text for the same function written again, another for any other."""

import functools
import importlib
import os
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ergodrift._core.signature import code, computation

X = jnp.linspace(0.1, 0.9, 3)
TABLE = np.arange(3.0)


def own_rule(factor):
    @jax.custom_jvp
    def function(x):
        return x * 2

    function.defjvp(lambda primals, tangents: (function(*primals), factor * tangents[0]))
    return lambda x: jnp.sum(function(x))


def own_reverse(factor):
    @jax.custom_vjp
    def function(x):
        return x * 2

    function.defvjp(lambda x: (function(x), None), lambda _, out: (factor * out,))
    return lambda x: jnp.sum(function(x))


def called_back(factor):
    def host(x):
        return np.asarray(x) * factor

    def function(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jnp.sum(jax.pure_callback(host, shape, jax.lax.stop_gradient(x)) * x)

    return function


# Functions of a number that each depend on it in another way.
MAKERS = {
    "captured number": lambda k: lambda x: jnp.sum(x) - k,
    "captured array": lambda k: (lambda table: lambda x: jnp.sum(x * table))(TABLE * k),
    "captured device array": lambda k: (lambda table: lambda x: jnp.sum(x * table))(jnp.asarray(TABLE * k)),
    "default": lambda k: lambda x, k=k: jnp.sum(x) - k,
    "partial": lambda k: functools.partial(lambda k, x: jnp.sum(x) - k, k),
    "inside jit": lambda k: lambda x: jax.jit(lambda y: jnp.sum(y * (TABLE * k)))(x),
    "inside scan": lambda k: lambda x: jax.lax.scan(lambda total, y: (total + k * y**2, None), 0.0, x)[0],
    "inside cond": lambda k: lambda x: jax.lax.cond(x[0] > k, lambda: jnp.sum(x), lambda: x[0] * k),
    "inside checkpoint": lambda k: lambda x: jax.checkpoint(lambda y: jnp.sum(jnp.sin(k * y)))(x),
    "inside vmap": lambda k: lambda x: jnp.sum(jax.vmap(lambda y: jnp.exp(k * y))(x)),
    "power": lambda k: lambda x: jnp.sum(x**k),
    "key": lambda k: lambda x: jnp.sum(x * jax.random.normal(jax.random.key(int(10 * k)), (3,))),
    "captured key": lambda k: (lambda key: lambda x: jnp.sum(x * jax.random.normal(key, (3,))))(
        jax.random.key(int(9 * k))
    ),
    "clip": lambda k: lambda x: jnp.sum(jnp.clip(x, 0, k)),
    "index": lambda k: lambda x: x[int(2 * k)],
    "rule": own_rule,
    "reverse rule": own_reverse,
    "callback": called_back,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_function_written_again_is_the_same_and_another_is_not(maker):
    make = MAKERS[maker]
    one, again, other = (computation(jax.value_and_grad(make(k)), X) for k in (0.5, 0.5, 1.0))
    assert one == again != other
    one, again, other = (code(make(k)) for k in (0.5, 0.5, 1.0))
    assert one == again
    assert one != other


def test_where_arrays_lie_does_not_count():
    """So that runs on several devices replace the same logarithms as runs on one: their numbers are equal."""
    outside, inside = computation(jnp.logaddexp, X, X), []

    def spread(x):
        inside.append(computation(jnp.logaddexp, x, x))
        return x

    place = jax.sharding.PartitionSpec("seeds")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("seeds",))
    jax.jit(jax.shard_map(spread, mesh=mesh, in_specs=place, out_specs=place, check_vma=False))(X)
    assert inside[0] == outside


def test_names_do_not_count_but_types_do():
    def loss(x):
        with jax.named_scope("first"):
            total = jnp.sum(x * 2)
        return total - 1

    def something_else(y):
        z = jnp.sum(y * 2)
        return z - 1

    assert computation(loss, X) == computation(something_else, X)
    assert computation(loss, X) != computation(loss, X.astype(jnp.float16))
    assert computation(loss, X) != computation(loss, X[:2])
    assert computation(loss, X) == computation(loss, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert computation(lambda a, b: a - b, X, X) != computation(lambda a, b: b - a, X, X)
    assert computation(jnp.sin, X) != computation(jnp.cos, X)


LIMIT = 0.5


def bounded(x):
    return helper(x) - LIMIT


def helper(x):
    return jnp.sum(x)


def recursive(x, depth=2):
    return x if depth == 0 else recursive(x, depth - 1)


def test_what_a_function_finds_in_its_module_counts(monkeypatch):
    before = code(bounded)
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 0.1)
    assert code(bounded) != before
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 0.5)
    assert code(bounded) == before
    monkeypatch.setattr(sys.modules[__name__], "helper", lambda x: jnp.max(x))
    assert code(bounded) != before
    assert code(recursive) == code(recursive)


def test_other_processes_say_the_same(tmp_path):
    """Other hash seeds, lines moved, other names, functions in another order."""
    script = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np
        from ergodrift._core.signature import code, computation
        jax.config.update("jax_enable_x64", True)
        table = np.arange(6.0).reshape(3, 2)
        def host(y):
            return np.asarray(y) * 2
        def loss(x):
            scores = {"b": jax.nn.softplus(table @ x), "a": jnp.linalg.solve(jnp.eye(2) + jnp.outer(x, x), x)}
            seen = jax.pure_callback(host, jax.ShapeDtypeStruct((2,), x.dtype), jax.lax.stop_gradient(x))
            sums = jax.tree.map(jnp.sum, scores)
            return sums["a"] + sums["b"] + jnp.sum(jax.nn.relu(x)) + jnp.sort(x)[0] + jnp.sum(seen * x)
        print(computation(jax.value_and_grad(loss), jnp.ones(2)), code(loss))
    """)
    renamed = "# moved\n\n\n" + script.replace("loss", "objective").replace("scores", "parts")
    found = set()
    for number, text in enumerate([script, script, renamed]):
        file = tmp_path / f"{number}.py"
        file.write_text(text)
        env = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        done = subprocess.run([sys.executable, file], check=True, capture_output=True, text=True, env=env)
        found.add(done.stdout)
    assert len(found) == 1


def test_objects_count_by_what_they_hold():
    import ergodrift as ed

    links = ["logistic", "hinge", "squared", lambda m: m**2, lambda m: m**3]
    assert len({code(ed.LinearModel(link, ed.Ball(1.0)).loss) for link in links}) == len(links)
    one, again = (code(ed.LinearModel(lambda m: -jnp.log(m), ed.Ball(1.0)).loss) for _ in range(2))
    assert one == again


def test_code_in_other_modules_and_in_objects_that_are_called_counts(tmp_path, monkeypatch):
    """Same name, other code: in a module that a loss calls by its name, and in the class of an object."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helper_of_a_loss.py").write_text("def part(x):\n    return x\n\n\ndef other(x):\n    return x\n")
    helper: Any = importlib.import_module("helper_of_a_loss")
    loss = eval("lambda x: helper.part(x)", {"helper": helper})
    before = code(loss)
    helper.other = lambda x: x + 1  # nobody calls it
    assert code(loss) == before
    helper.part = eval("lambda x: x + 1")
    assert code(loss) != before

    def scaled(call):
        return type("Loss", (), {"__call__": call})()

    assert code(scaled(lambda self, x: x)) == code(scaled(lambda self, x: x)) != code(scaled(lambda self, x: 2 * x))
