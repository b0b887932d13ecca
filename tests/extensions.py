"""What a stranger may define in a module, script or notebook of their own: a geometry, a schedule and an estimator."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

import ergodrift as ed
from ergodrift.geometry import Geometry
from ergodrift.methods.estimator import SingleSample
from ergodrift.methods.method import DriftPlusPenalty
from ergodrift.methods.schedule import Schedule
from ergodrift.types import Feedback, Weights

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def pytree(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree, unless its base class has made it one."""
    if "__dataclass_fields__" in vars(cls):
        return cls
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, eq=False)(cls))


@pytree
class Cube(Geometry):
    """All points whose entries are at most `side` in size."""

    side: Any

    def project(self, x):
        return jax.tree.map(lambda leaf: jnp.clip(leaf, -self.side, self.side), x)

    def prox(self, x, direction, proximity):
        return self.project(jax.tree.map(lambda a, d: a - d / (2 * proximity), x, direction))

    def norm(self, x):
        return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x)))

    dual_norm = norm

    def bregman(self, x, y):
        return self.norm(jax.tree.map(jnp.subtract, x, y)) ** 2

    def reach(self, x):
        return self.side * jnp.sqrt(float(sum(jnp.size(leaf) for leaf in jax.tree.leaves(x))))

    def diameter(self, x):
        return 2 * self.reach(x)

    def check(self, x):
        return None


@pytree
class Cubic(Schedule):
    """V_t = scale t^(1/3) and alpha_t = scale t^(2/3); its state counts the rounds once more."""

    scale: Any

    def init(self, geometry, x, num_constraints):
        return jnp.int32(0)

    def weights(self, state, t, sizes):
        size = jnp.cbrt((state + 1).astype(sizes.loss_grad.dtype))
        return state + 1, Weights(self.scale * size, self.scale * size**2)


@pytree
class Smoothed(SingleSample):
    """Each sample is a round, whose feedback is a running mean over all samples so far."""

    rate: Any

    def init(self, zero, levels):
        return zero[:4]

    def observe(self, window, t, feedback, x=None):
        window = jax.tree.map(lambda old, new: old + self.rate * (new - old), window, feedback[:4])
        return window, Feedback(*window), True


GEOMETRY = Cube(0.7)
ALGORITHM = ed.Algorithm("own", DriftPlusPenalty, Cubic(2.0), Smoothed(0.3))
