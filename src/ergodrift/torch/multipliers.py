"""Two ways from constraint values to multipliers: scale-free, and the virtual queue of the paper.

Both hold small tensors, one number for each constraint, and know nothing of networks. They say the same as
`ergodrift.methods`, in PyTorch: there, functions are compiled; here, they belong to a loop of the user's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch  # type: ignore[import-not-found]

DUAL_STRIDE = (
    0.1  # k, a pure number: a third of `ed.sdpp`'s, since a network is judged by its last point, not by an average
)


class ScaleFree:
    """lambda_i' = [lambda_i + (k / m) Lambda_i / sqrt(t E_i) g_i]_+ (docs/laboratory/scalefree.md).

    E_i is the mean of g_i^2 over the rounds so far, round s with weight s, and Lambda_i the largest that the average of
    lambda_i has been, or |grad f| / |grad g_i| if that is larger. So lambda_i has the unit of loss over constraint,
    whatever these are measured in, and no step is chosen. The m constraints that are violated in a round (1 at least)
    share one stride: together they push as one, also where a network that has learnt nothing yet keeps none of them.

    Gradients are measured in some rounds only, so that their means are over those: the loss's whenever any is, and the
    constraints' in turn, all of them in round 1 and then one in every `every`-th round; those that have had none yet
    (no sample of a group has come) also in rounds 2, 4, 8, ...
    """

    TENSORS = ("multipliers", "mean", "reached", "energy", "loss_grad", "constraint_jac", "heard")
    NUMBERS = ("t", "turn", "measured", "heard_loss")

    def __init__(self, count: int, pairs: int, like: torch.Tensor, every: int) -> None:
        self.every = every
        self.t, self.turn, self.heard_loss = 0, 0, 0
        self.measured = [0] * count  # how often, each
        each = like.new_zeros(count + pairs)
        self.rows = torch.arange(count + pairs, device=like.device)  # of which constraint each multiplier is
        self.multipliers, self.mean, self.reached, self.energy = (each.clone() for _ in range(4))
        self.constraint_jac = each[:count].clone()  # means of |grad g_i|^2
        self.loss_grad = each.new_zeros(())  # that of |grad f|^2
        self.heard = torch.zeros((), device=like.device, dtype=torch.bool)  # whether the loss has had a gradient

    @property
    def queue(self) -> torch.Tensor:
        return self.multipliers

    def due(self) -> list[int]:
        """The constraints whose gradients are to be measured in the coming round."""
        n = len(self.constraint_jac)
        due = [i % n for i in range(self.turn, n + self.t // self.every)] if n else []
        if self.t and not (self.t + 1) & self.t:  # rounds 2, 4, 8, ...
            due += [i for i in torch.nonzero(self.constraint_jac == 0).flatten().tolist() if i not in due]
        return due

    def shown(self, loss: torch.Tensor | None) -> torch.Tensor:
        """The multipliers of the coming round, given |grad f|^2 if that was measured.

        Until the loss has a gradient, no multiplier has a scale: what they did before is dropped.
        """
        return self.multipliers if loss is None else torch.where(self._first(loss), 0, self.multipliers)

    def update(self, values: torch.Tensor, change: torch.Tensor | None, sizes: torch.Tensor | None) -> None:
        """Round t = 1, 2, ... with constraint values g_t.

        Args:
            values: one for each multiplier.
            change: not used: docs/laboratory/scalefree.md says why.
            sizes: |grad f|^2, and |grad g_i|^2 of the constraints that are `due`; None where none is.
        """
        if sizes is not None:
            self._listen(sizes[0], sizes[1:])
        self.t += 1
        self.energy = _toward(self.energy, values.square(), self.t)
        self.mean = _toward(self.mean, self.multipliers, self.t)
        self.reached = torch.maximum(self.reached, self.mean)
        loss = torch.where(self.heard, self.loss_grad, 1)
        scale = torch.maximum(self.reached, (loss * _inverse(self.constraint_jac)).sqrt()[self.rows])
        rates = scale * _inverse(self.t * self.energy).sqrt()
        pushing = (values > 0) & (rates > 0)  # what no parameter moves pushes nobody
        shared = DUAL_STRIDE / pushing.sum().clamp(min=1).to(values.dtype)
        self.multipliers = (self.multipliers + shared * rates * values).clamp(min=0)

    def _first(self, loss: torch.Tensor) -> torch.Tensor:
        return ~self.heard & (loss > 0)

    def _listen(self, loss: torch.Tensor, constraints: torch.Tensor) -> None:
        # A gradient that overflowed, scaled for half precision, says nothing of its size.
        due = self.due()
        loss = torch.where(loss.isfinite(), loss, self.loss_grad)
        constraints = torch.where(constraints.isfinite(), constraints, self.constraint_jac[due])
        first = self._first(loss)
        self.multipliers, self.mean, self.reached = (
            torch.where(first, 0, old) for old in (self.multipliers, self.mean, self.reached)
        )
        self.heard = self.heard | first
        self.heard_loss += 1
        self.loss_grad = _toward(self.loss_grad, loss, self.heard_loss)
        jac = self.constraint_jac.clone()
        for i, size in zip(due, constraints, strict=True):
            self.measured[i] += 1
            jac[i] = _toward(jac[i], size, self.measured[i])
        self.constraint_jac, self.turn = jac, max(self.turn, len(jac) + self.t // self.every)


class VirtualQueue:
    """Q_i' = [Q_i + g_i(x_t) + grad g_i(x_t) . (x_{t+1} - x_t)]_+ and multipliers Q_t / V_t (Kim and Lee, appendix A).

    The step of the paper is (V_t df + sum_i Q_i dg_i) / (2 alpha_t): that of SGD on df + sum_i (Q_i / V_t) dg_i with
    the learning rate V_t / (2 alpha_t).
    """

    TENSORS = ("queue",)
    NUMBERS = ("t",)

    def __init__(self, count: int, pairs: int, like: torch.Tensor, penalty: float | Callable[[int], float]) -> None:
        self.t, self.penalty = 0, penalty
        self.queue = like.new_zeros(count + pairs)
        self.rows = torch.arange(count + pairs, device=like.device)

    @property
    def multipliers(self) -> torch.Tensor:
        value = self.penalty(self.t + 1) if callable(self.penalty) else self.penalty
        if not value > 0:
            raise ValueError(f"penalty must be > 0, got {value} in round {self.t + 1}")
        return self.queue / value

    def due(self) -> list[int]:
        return []

    def shown(self, loss: torch.Tensor | None) -> torch.Tensor:
        return self.multipliers

    def update(self, values: torch.Tensor, change: torch.Tensor | None, sizes: torch.Tensor | None) -> None:
        self.t += 1
        self.queue = (self.queue + values + (0 if change is None else change)).clamp(min=0)


def _toward(mean: torch.Tensor, value: torch.Tensor, t: int) -> torch.Tensor:
    """A mean with one more value in it, the t-th; values weigh about t (Shamir and Zhang 2013)."""
    return torch.lerp(mean, value, 2 / (t + 1))


def _inverse(square: torch.Tensor) -> torch.Tensor:
    """1 / square, or 0 where there is nothing to divide by."""
    return torch.where(square > 0, 1 / torch.where(square > 0, square, 1), 0)
