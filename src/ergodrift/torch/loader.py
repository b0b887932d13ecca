"""How far the samples of a `DataLoader` depend on each other, and whether it reads them as it should."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch  # type: ignore[import-not-found]
from torch.utils.data import (  # type: ignore[import-not-found]
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

if TYPE_CHECKING:
    from ergodrift.trust import Diagnosis

DEPENDENT = 1.5  # integrated autocorrelation time from which samples count as dependent; independent ones have 1
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def diagnose(
    loader: DataLoader,
    fn: Callable[[Any], Any],
    *,
    order: Literal["given", "shuffled"] | None = None,
    confidence: float = 0.95,
) -> Diagnosis:
    """How dependent the samples of a loader are, in the order in which they were recorded: `ed.diagnose` of fn.

    A map-style dataset is read from its first sample to its last, whatever the loader's sampler; an iterable one as it
    comes. Warns where the loader does not read dependent samples in the order asked for: shuffled, they are nearly
    independent for the optimiser, but what is measured on batches says nothing of seasons; as given, consecutive
    batches resemble each other and the network follows the season it is in.

    Args:
        loader: a `torch.utils.data.DataLoader`.
        fn: of a batch, one number for each sample, (batch,) or (batch, k), or a dict of such: losses and constraints of
            a network, say. Called without gradients.
        order: which order training wants, "given" or "shuffled"; no warning unless told.
        confidence: of the interval of the mixing time.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    >>> for t in range(1, 4000):  # AR(1): dependent over some 20 samples
    ...     x[t] += 0.95 * x[t - 1]
    >>> found = diagnose(DataLoader(TensorDataset(x), batch_size=50), lambda batch: batch[0])
    >>> 10 < found.tau_mix < 40
    True
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"loader must be a torch.utils.data.DataLoader, got {loader!r}")
    if order not in (None, "given", "shuffled"):
        raise ValueError(f"order must be 'given', 'shuffled' or None, got {order!r}")
    from ergodrift.trust import diagnose as of_series  # loads JAX, which nothing else here does

    found = of_series(_series(_recorded(loader), fn), confidence=confidence)
    if order is not None and found.integrated_time > DEPENDENT:
        _warn(loader, order, found)
    return found


def _recorded(loader: DataLoader) -> DataLoader:
    """The loader without its sampler."""
    if isinstance(loader.dataset, IterableDataset):
        return loader
    batches = loader.batch_sampler is not None  # a loader with one of the user's has no batch_size
    return DataLoader(
        loader.dataset, batch_size=loader.batch_size or 256, shuffle=False, num_workers=loader.num_workers,
        collate_fn=loader.collate_fn if batches else None,
    )  # fmt: skip


def _series(loader: DataLoader, fn: Callable[[Any], Any]) -> Any:
    batches: list[Any] = []
    with torch.no_grad():
        for batch in loader:
            value = fn(batch)
            parts = value if isinstance(value, Mapping) else {"": value}
            for name, part in parts.items():
                if not isinstance(part, torch.Tensor) or part.dim() not in (1, 2):
                    found = tuple(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
                    where = f" for {name!r}" if name else ""
                    raise ValueError(
                        f"fn must return one number for each sample, a tensor (batch,) or (batch, k), got {found}"
                        f"{where}: no mean over the batch (reduction='none')"
                    )
            batches.append({name: part.double().cpu() for name, part in parts.items()})
    if not batches:
        raise ValueError("loader is empty: it has given no batch")
    columns = {name: torch.cat([batch[name] for batch in batches]).numpy() for name in batches[0]}
    return columns[""] if list(columns) == [""] else columns


def _warn(loader: DataLoader, order: str, found: Diagnosis) -> None:
    if isinstance(loader.dataset, IterableDataset):
        return  # in what order it comes, only its author knows
    # Beside a batch sampler of the user's, DataLoader.sampler is not the one that is used.
    sampler = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    shuffle = getattr(sampler, "shuffle", None)  # what DistributedSampler was told
    dependence = (
        f"samples depend on each other over about {found.tau_mix:.3g} steps ({found.num_samples:,} are worth "
        f"{found.ess:,.0f})"
    )
    if order == "given" and (isinstance(sampler, SHUFFLING) or shuffle is True):
        warnings.warn(
            f"{dependence}, and training was to see them in their order, but the loader shuffles them: pass "
            "DataLoader(..., shuffle=False)",
            stacklevel=3,
        )
    elif order == "shuffled" and (isinstance(sampler, SequentialSampler) or shuffle is False):
        warnings.warn(
            f"{dependence}, and training was to see them shuffled, but the loader reads them in their order: pass "
            "DataLoader(..., shuffle=True), or keep the order and have multipliers that know of it: "
            f"DriftPlusPenalty(..., penalty=lambda t: ({found.tau_mix:.3g} * t) ** 0.5)",
            stacklevel=3,
        )
