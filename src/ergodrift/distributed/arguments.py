"""What `walk` is asked for, checked before anything runs: each error names the argument and what it must be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ergodrift._core import check
from ergodrift.data.chain import MarkovChain
from ergodrift.engine.run import record_grid
from ergodrift.types import Array


def importance(law: str | ArrayLike | None, chain: MarkovChain, local_rounds: int) -> np.ndarray | None:
    """What the answers of each agent are weighed by, for means under this law."""
    if law is None:
        return None
    if local_rounds > 1:
        raise ValueError("law needs local_rounds=1: where agents make rounds, the hub does not see what to weigh")
    count = chain.num_states
    wanted = np.ones(count) if isinstance(law, str) and law == "uniform" else np.asarray(law)
    if wanted.shape != (count,) or not np.issubdtype(wanted.dtype, np.number) or (wanted < 0).any() or not wanted.any():
        raise ValueError(f"law must be 'uniform' or {count} numbers >= 0, one for each agent, got {law!r}")
    return wanted / wanted.sum() / chain.stationary


def hops_at(record: int | Sequence[int] | Array, num_samples: int, local_rounds: int) -> np.ndarray:
    """The hops to record at."""
    if np.ndim(record) == 0:
        return record_grid(record, num_samples // local_rounds)
    grid = record_grid(record, num_samples)
    if (grid % local_rounds).any():
        raise ValueError(f"record must hold multiples of local_rounds={local_rounds}: agents keep what is in between")
    return grid // local_rounds


def checked_paths(paths: ArrayLike, tokens: int, hops: int, agents: int) -> np.ndarray:
    """Where tokens are to go, (tokens, hops)."""
    paths = np.asarray(paths)
    paths = np.broadcast_to(paths, (tokens, len(paths))) if paths.ndim == 1 else paths
    if paths.shape != (tokens, hops) or not np.issubdtype(paths.dtype, np.integer):
        wanted = f"whole numbers of shape (tokens, hops) = ({tokens}, {hops})"
        raise ValueError(f"paths must be {wanted}, got {paths.dtype} of shape {paths.shape}")
    if paths.min() < 0 or paths.max() >= agents:
        raise ValueError(f"paths must hold agents between 0 and {agents - 1}, got {paths.min()} to {paths.max()}")
    return paths.astype(np.int32)


def check_memory(algorithm: str, private: list[str]) -> None:
    """Refuse tokens that would show an agent what others have answered, where some want privacy."""
    if private:
        raise ValueError(
            f"local_rounds > 1 with {algorithm} sends the last answers of all agents to each of them, and "
            f"{check.some(private)} asks for privacy; use local_rounds=1, or an algorithm without memory"
        )
