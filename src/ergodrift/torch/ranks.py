"""What the processes of a distributed training tell each other, so that their multipliers are the same."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found]


def count(group: Any) -> int:
    """How many processes train together; 1 where nothing is distributed."""
    parallel = torch.distributed
    return parallel.get_world_size(group) if parallel.is_available() and parallel.is_initialized() else 1


def averaged(values: torch.Tensor, sizes: torch.Tensor | None, group: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Averages over all ranks, so that multipliers are the same everywhere."""
    ranks = count(group)
    if ranks == 1 or not len(values):
        return values, sizes
    both = torch.cat([values] if sizes is None else [values, sizes]) / ranks
    torch.distributed.all_reduce(both, group=group)
    return both[: len(values)], None if sizes is None else both[len(values) :]


def agree(names: Sequence[str], like: torch.Tensor, group: Any) -> None:
    """All ranks have these names in this order, or all of them raise: values are averaged by their numbers."""
    if count(group) == 1:
        return
    digest = zlib.crc32("\0".join(map(str, names)).encode())
    ends = torch.tensor([digest, -digest], device=like.device)
    torch.distributed.all_reduce(ends, op=torch.distributed.ReduceOp.MAX, group=group)
    if ends[0] != -ends[1]:
        raise ValueError(
            f"constraints have other names, or another order, on another rank; here they are {list(names)}. A set has "
            "another order in each process: make the dict from a list, sorted(...)"
        )
