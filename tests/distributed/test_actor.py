"""An actor answers each question by itself, with noise that nothing else shares."""

import os
import subprocess
import sys
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import replies, wire
from ergodrift.distributed.actor import AgentActor, PreparedWalk, _lowered
from ergodrift.distributed.serialization import SIGNATURE_BYTES
from ergodrift.distributed.wire import WalkSpec
from ergodrift.engine.carry import RunSpec
from ergodrift.methods.average import Average
from walks import ZERO

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


WALK = bytes(wire.ID_BYTES)


def prepared(agent, problem, number=0, local_rounds=1, batch=1, secure=False):
    """The actor of an agent, in this process."""
    flag = "jax_cpu_enable_async_dispatch"  # an actor sets it for its process, and this one is not its own
    before = jax.config.read(flag)
    actor = AgentActor(unsigned(agent), number)
    jax.config.update(flag, before)
    said = actor.prepare(WALK, sent_spec(problem, local_rounds, batch, secure))
    assert isinstance(replies.parsed(said), replies.Ready), said
    return actor


def sent_spec(problem, local_rounds=1, batch=1, secure=False, algorithm=None):
    """What an agent is told of a walk, as `walk` sends it."""
    method = (algorithm or ed.edpp(4.0)).bind(problem)
    run_spec: Any = RunSpec(problem, method, cast("Any", None), None, Average())
    run_spec = run_spec._replace(stream=None, method=run_spec.method if local_rounds > 1 else None)
    spec = WalkSpec(run_spec, ZERO, 1, local_rounds, batch, True, secure)
    return unsigned(wire.on_host(spec))


def unsigned(value):
    """`serialize` without its search for modules."""
    return bytes(SIGNATURE_BYTES) + pytest.importorskip("ray.cloudpickle").dumps(value)


def numbers(reply):
    """Those of an answer."""
    answer = replies.parsed(reply)
    assert isinstance(answer, bytes)
    return np.frombuffer(answer, float)


def noisy(loss, file, name=None, data=1.0, clip=1.0, noise=1.0, **options):
    """An actor whose answers are nothing but noise, and the secret from which it draws that."""
    privacy = dd.Privacy(clip, noise, secret=file)
    problem = ed.Problem(loss, lambda x, xi: jnp.stack([0 * jnp.sum(x)]), ed.Ball(5.0))
    actor = prepared(dd.Agent(np.float64(data), name=name, privacy=privacy), problem, **options)
    secret = actor.walks[WALK].secret
    assert secret is not None
    return actor, secret.bytes


def test_noise_is_shared_by_nothing_but_the_same_question(tmp_path, monkeypatch):
    """Answers to two questions with the same noise would differ by what is to be hidden."""
    file, table = tmp_path / "secret", np.arange(64.0)

    def flat(x, xi):
        return 0 * jnp.sum(x) * xi

    def other(x, xi):
        return 0 * jnp.sum(x**2) * xi

    def with_table(table):
        return lambda x, xi: 0 * jnp.sum(x) * xi * jnp.max(table)

    (actor, secret), (again, same_secret) = noisy(flat, file), noisy(lambda y, z: 0 * jnp.sum(y) * z, file)
    assert secret == same_secret  # the same function, pickled otherwise
    question = WALK + bytes(ZERO.nbytes)
    noise = numbers(actor.answer(question))
    assert np.array_equal(noise, numbers(again.answer(question)))
    for changed in (noisy(other, file)[0], noisy(flat, file, number=1)[0]):
        assert np.abs(noise - numbers(changed.answer(question))).min() > 1e-6  # not one entry in common

    variants = [
        (with_table(table), {}), (with_table(table + 1e-12), {}),  # the same but for a constant
        (flat, {"name": "b"}), (flat, {"data": 2.0}), (flat, {"clip": 2.0}),
        (flat, {"noise": 2.0}), (flat, {"local_rounds": 2}),
    ]  # fmt: skip
    monkeypatch.setattr(PreparedWalk, "answers", lambda *_: None)  # the secret is enough: nothing is compiled
    found = {secret, *(noisy(loss, file, **options)[1] for loss, options in variants)}
    assert len(found) == 1 + len(variants)


@pytest.mark.parametrize("local_rounds", [1, 2])
def test_answers_do_not_depend_on_who_else_is_asked_for(tmp_path, local_rounds):
    """Questions are answered a batch at a time, whatever their number is, and the noise is that of each question."""
    options = {"file": tmp_path / "secret", "local_rounds": local_rounds}
    actors = [noisy(lambda x, xi: jnp.sum((x - xi) ** 2), **options, batch=batch)[0] for batch in (1, 4)]
    width = actors[0].walks[WALK].question.shape[0]
    questions = np.random.default_rng(0).uniform(0.1, 1, (9, width)).view(np.uint64)
    if local_rounds > 1:
        questions[:, 0] = 1  # t
    each = [numbers(actors[0].answer(WALK + row.tobytes())) for row in questions]
    for count in range(1, 10):
        for actor in actors:
            answers = numbers(actor.answer(WALK + questions[:count].tobytes()))
            np.testing.assert_allclose(answers.reshape(count, -1), each[:count], rtol=1e-12)


HOISTED = """
import numpy as np
from ergodrift.distributed.actor import _lowered
table = np.arange(64.0)
assert _lowered(lambda x: x + table, table) is None
assert _lowered(lambda x: x + 1, table) is not None
"""


def test_a_text_that_does_not_say_all_is_not_relied_on():
    def text(start):
        table = start + np.arange(64.0)
        return _lowered(lambda x: x[0] + table, ZERO)

    assert text(0) == text(0) != text(1)
    assert _lowered(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x), ZERO) is None
    if jax.__version_info__ < (0, 10):  # cannot lower a function in this mode
        return
    # Read when JAX starts; its authors mean to make it the only way.
    environment = {**os.environ, "JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS": "1", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", HOISTED], env=environment, check=True, timeout=120)
