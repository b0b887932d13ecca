"""What is refused of an optimiser, and what a user should know of constraints that no parameter moves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found]

from ergodrift.torch import gradients


def refuse_ascent(groups: list[dict[str, Any]]) -> None:
    """Optimisers that climb."""
    if any(group.get("maximize") for group in groups):
        raise ValueError(
            "maximize=True would climb the constraints too, away from g <= 0: take the optimiser without it, and hand "
            "backward what is to be small, opt.backward(-reward, constraints)"
        )


def refuse_shards(groups: list[dict[str, Any]]) -> None:
    """Parameters of which each rank has a part."""
    if any(hasattr(p, "full_tensor") for group in groups for p in group["params"]):  # what only a DTensor has
        raise TypeError(
            "parameters are sharded (fully_shard, tensor parallelism): gradients are measured whole, and there no rank "
            "has them whole. DistributedDataParallel shares the batches instead"
        )


def check_count(name: str, value: int, least: int) -> None:
    """A whole number, `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


def warn_of_constants(
    params: list[torch.Tensor],
    values: torch.Tensor,
    due: Sequence[int],
    sizes: torch.Tensor,
    names: Sequence[str] | None,
) -> None:
    """A constraint that is violated and has no gradient will not be kept, and the user should know in round 1.

    A gradient is one of rounding where all parameters, twice as large, would change the last digits of the constraint.
    Nothing is done about that: a saturated network has gradients as small, and they are right.

    Args:
        params: those that train.
        values: (n,) of the constraints.
        due: those that have been measured.
        sizes: their |grad g_i|^2.
        names: of the constraints, if they have any.
    """
    kinds = [torch.finfo(p.dtype).eps for p in params]
    whole = gradients.size([p.detach() for p in params], values.new_zeros(()))
    rounding = sizes * whole <= (8 * max(kinds, default=0.0) * values[list(due)]).square()
    for found, what in (
        (sizes == 0, "0: its multiplier stays 0 until it has one"),
        ((sizes > 0) & rounding & (whole > 0), "no more than rounding, which its multiplier will make up for"),
    ):
        stuck = [i for i, flat in zip(due, found.tolist(), strict=True) if flat and values[i] > 0]
        if stuck:
            which = ", ".join(repr(names[i]) if names else str(i) for i in stuck)
            warnings.warn(
                f"constraint {which} is violated, and its gradient is {what}. Does it depend on the parameters? Where "
                "it counts or compares, pass a differentiable stand-in as proxy=",
                stacklevel=5,  # here, backward, its two decorators
            )
