"""Classes of the user's own travel by value, and are the same pytrees where they arrive."""

import runpy
from typing import dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
import extensions
from ergodrift import distributed as dd
from ergodrift.distributed.serialization import deserialize, serialize
from walks import GRAPH, PROBLEM, SOURCE, ZERO, close

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


@dataclass_transform(frozen_default=True)
class Registering:
    """Makes its subclasses pytrees, whose fields are those that they have by then."""

    def __init_subclass__(cls) -> None:
        extensions.pytree(cls)


class Registered(Registering):
    number: float


def test_classes_sent_by_value_are_the_same_pytrees_in_another_process():
    cloudpickle = pytest.importorskip("ray.cloudpickle.cloudpickle")
    sent = [extensions.Cube(0.7), extensions.Cubic(2.0), extensions.Smoothed(0.3), Registered(4.0)]
    packed = serialize((sent, extensions.Cube))
    cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()  # another process has not met these classes
    found, cube = deserialize(packed)
    for one, other in zip(sent, found, strict=True):
        assert type(one) is not type(other)
        assert [base.__name__ for base in type(one).__mro__] == [base.__name__ for base in type(other).__mro__]
        assert jax.tree.leaves(one) == jax.tree.leaves(other) != []
        doubled = jax.tree.map(lambda leaf: 2 * leaf, other)
        assert type(doubled) is type(other)
        assert vars(doubled) == {name: 2 * value for name, value in vars(one).items()}
    assert type(found[0]) is cube
    assert isinstance(found[0], ed.Geometry)
    assert float(jax.jit(lambda geometry, x: geometry.project(x))(found[0], jnp.ones(()))) == 0.7


@pytest.mark.parametrize(
    ("where", "local_rounds"), [pytest.param("module", 1, marks=pytest.mark.slow), ("__main__", 3)]
)
def test_a_walk_takes_what_a_stranger_defines(network, where, local_rounds):
    """In a module that no agent has, or in the script itself."""
    own = vars(extensions) if where == "module" else runpy.run_path(extensions.__file__, run_name=where)
    assert own["Cube"].__module__ == (where if where == "__main__" else "extensions")
    problem = ed.Problem(PROBLEM.loss, PROBLEM.constraints, own["GEOMETRY"])
    options = {"x0": ZERO, "num_samples": 30, "record": [30]}
    walk = dd.walk(own["ALGORITHM"], problem, GRAPH, network, local_rounds=local_rounds, **options)
    paths = np.repeat(SOURCE.paths(1, 30 // local_rounds), local_rounds, axis=1)
    run = ed.run(own["ALGORITHM"], problem, SOURCE, paths=paths, **options)
    close(walk.result, run, 1e-12)
    assert not walk.set_aside
    assert np.abs(walk.x).max() <= 0.7
