"""The forms in which a training loop has its constraints, and the one vector that all become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from numbers import Real
from typing import TypeAlias

import torch  # type: ignore[import-not-found]

Constraints: TypeAlias = "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]"
Values: TypeAlias = "Constraints | float | Sequence[float] | Mapping[str, float]"  # where a proxy has the gradients
UNSEEN = "; for a group that no sample of a batch belongs to, give 0 * loss"


def as_vector(
    what: str, given: Constraints | Values | None, count: int, names: Sequence[str] | None, *, graph: bool
) -> torch.Tensor:
    """The n values as one tensor (n,), averaged over samples where they came sample by sample.

    Args:
        what: how the argument is called.
        given: a tensor (n,) or (batch, n), and for n = 1 also () or (batch,); or a sequence or dict of n tensors, each
            () or (batch,).
        count: n.
        names: of the constraints, where they have been given by names before.
        graph: whether the values must depend on parameters; where they need not, plain numbers will do.
    """
    if isinstance(given, Real) and not graph:
        given = _number(given)
    if isinstance(given, torch.Tensor):
        return _of_tensor(what, given, count, graph)
    if isinstance(given, Set):
        raise TypeError(f"{what} came in a set, which has no order: a list or a dict says which is which")
    if given is None or isinstance(given, (str, bytes, Real)):
        raise TypeError(
            f"{what} must be a tensor, or a sequence or dict of tensors, got {given!r}"
            + (": num_constraints counts 0, so pass nothing" if count == 0 else "")
        )
    if isinstance(given, Mapping):
        if names is not None and set(given) != set(names):
            raise ValueError(f"{what} must have the names {sorted(names)}, got {sorted(given)}")
        parts = {name: given[name] for name in names or given}
    else:
        parts = dict(enumerate(given))
    if not graph:
        parts = {name: _number(part) if isinstance(part, Real) else part for name, part in parts.items()}
    if len(parts) != count:
        raise ValueError(f"{what} must hold {count} values, as num_constraints says, got {len(parts)}")
    for name, part in parts.items():
        if not isinstance(part, torch.Tensor):
            hint = f"; what has been through .item() or NumPy has no gradient{UNSEEN}" if graph else ""
            raise TypeError(f"{what}[{name!r}] must be a tensor, got {part!r}{hint}")
        if part.dim() > 1:
            raise ValueError(
                f"{what}[{name!r}] must have shape () or (batch,), one number for each sample, got {tuple(part.shape)}"
            )
        if graph:
            _refuse_detached(f"{what}[{name!r}]", part)
    if not parts:
        return torch.zeros(0)
    first = next(iter(parts.values()))
    means = [_wide(part).mean() for part in parts.values()]  # of a single number, that number
    kind = torch.float64 if any(mean.dtype == torch.float64 for mean in means) else torch.float32
    return torch.stack([mean.to(first.device, kind) for mean in means])


def _of_tensor(what: str, given: torch.Tensor, count: int, graph: bool) -> torch.Tensor:
    shape = tuple(given.shape)
    vector = given.unsqueeze(-1) if count == 1 and given.dim() < 2 and shape != (1,) else given
    if vector.dim() not in (1, 2) or vector.shape[-1] != count:
        scalar = ", () or (batch,)" if count == 1 else ""
        raise ValueError(
            f"{what} must have shape ({count},) or (batch, {count}){scalar}, as num_constraints={count} says, "
            f"got {shape}"
        )
    if graph and count:
        _refuse_detached(what, given)
    vector = _wide(vector)
    return vector.mean(0) if vector.dim() == 2 else vector


def _number(value: Real) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """In float32 at least: sums and multipliers need the digits that half precision has not."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def _refuse_detached(what: str, part: torch.Tensor) -> None:
    if not part.requires_grad:
        raise ValueError(
            f"{what} is detached: no parameter can be reached from it. Compute it outside torch.no_grad() and without "
            ".item() or .detach(); where it has no gradient (counts, rates), pass a differentiable stand-in as proxy="
            + UNSEEN
        )


def refuse_nonfinite(values: torch.Tensor, names: Sequence[str] | None) -> None:
    """No NaN and no infinity: one would stay in its multiplier for ever."""
    bad = torch.nonzero(~torch.isfinite(values))
    if len(bad):
        i = int(bad[0])
        name = repr(names[i]) if names else i
        raise ValueError(
            f"constraint {name} is {values[i].item()}; parameters and multipliers have not been touched. The mean over "
            "a group that no sample of a batch belongs to is NaN: give 0 * loss for it"
        )
