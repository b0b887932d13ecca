"""Gradients of single numbers by all parameters, wherever these are and whatever they are made of."""

from __future__ import annotations

import torch  # type: ignore[import-not-found]


def of(output: torch.Tensor, params: list[torch.Tensor]) -> list[torch.Tensor]:
    """The gradient of one number, with zeros for parameters that it does not depend on; the graph stays."""
    if not params:  # all are frozen
        return []
    return list(torch.autograd.grad(output, params, retain_graph=True, allow_unused=True, materialize_grads=True))


def size(grads: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """|grad|^2 over all parameters."""
    flat = (_real(grad.coalesce().values() if grad.is_sparse else grad) for grad in grads)
    sizes = (torch.linalg.vector_norm(grad, dtype=like.dtype).square().to(like.device) for grad in flat)
    return sum(sizes, torch.zeros_like(like))


def along(jac: list[list[torch.Tensor]], moved: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """grad g_i . (x_{t+1} - x_t) for each i, summed over parameters."""
    rows = [
        sum(((_real(a) * _real(b)).sum().to(like) for a, b in zip(row, moved, strict=True)), torch.zeros_like(like))
        for row in jac
    ]
    return torch.stack(rows) if rows else torch.zeros(0, device=like.device, dtype=like.dtype)


def _real(values: torch.Tensor) -> torch.Tensor:
    """A complex number is two real ones."""
    return torch.view_as_real(values) if values.is_complex() else values
