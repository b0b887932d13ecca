"""Products of the gradients of loss and constraints with a direction, where no Jacobian is formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ergodrift.types import PyTree

DIRECTIONS = 8  # along which norms are looked at


def transposed(vjp: Any, size: int, kind: Any) -> Callable[[PyTree], jax.Array]:
    """The products of the gradients of loss and constraints with a direction, (n + 1,): `vjp`, the other way."""
    values = jax.ShapeDtypeStruct((size,), kind)
    (like,) = jax.eval_shape(vjp, values)
    transpose = jax.linear_transpose(vjp, values)

    def fitting(step: PyTree, like: PyTree) -> PyTree:
        if isinstance(step, optax.MaskedNode):
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return step.astype(like.dtype)

    leaves, structure = jax.tree.flatten(like)

    def along(step: PyTree) -> jax.Array:
        if len(jax.tree.leaves(step)) == len(leaves):  # flax's nnx hands optimisers bare arrays, and models states
            step = jax.tree.unflatten(structure, jax.tree.leaves(step))
        step = jax.tree.map(fitting, step, like, is_leaf=lambda node: isinstance(node, optax.MaskedNode))
        try:
            return transpose((step,))[0]
        except (NotImplementedError, ValueError, AssertionError) as error:
            raise NotImplementedError(
                "the backward pass of loss_and_constraints has no transpose, which gives the products of its gradients "
                f"with a direction ({error!r}): a custom_vjp in it has a rule that is not linear (it clips, say), or "
                "is a kernel of its own. Pass constraints= and jacobian= to update instead"
            ) from error

    return along


def norms(along: Callable[[PyTree], jax.Array], x: PyTree, t: jax.Array) -> jax.Array:
    """|df| and |dg_i|, (n + 1,), as root mean squares of their products with random signs."""
    leaves, structure = jax.tree.flatten(x)
    key = jax.random.fold_in(jax.random.key(0), t)
    # 32 bits of a word are the signs of as many directions: random words are what takes time.
    words = [jax.random.bits(jax.random.fold_in(key, i), leaf.shape, "uint32") for i, leaf in enumerate(leaves)]

    def slopes(j: jax.Array) -> jax.Array:
        signs = [1 - 2 * ((word >> j) & 1).astype(leaf.dtype) for word, leaf in zip(words, leaves, strict=True)]
        # Where a mesh is explicit, shards are part of a type: those of the parameters.
        signs = [sign * jnp.ones_like(leaf) for sign, leaf in zip(signs, leaves, strict=True)]
        return along(jax.tree.unflatten(structure, signs))

    # One after the other: side by side they would take the memory of eight networks.
    return jnp.sqrt(jnp.mean(jnp.square(jax.lax.map(slopes, jnp.arange(DIRECTIONS, dtype="uint32"))), axis=0))
