"""`DriftPlusPenalty`: any optimiser of PyTorch, with constraints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch  # type: ignore[import-not-found]

from ergodrift.torch import gradients, ranks
from ergodrift.torch.checks import check_count, refuse_ascent, refuse_shards, warn_of_constants
from ergodrift.torch.constraints import Constraints, Values, as_vector, refuse_nonfinite
from ergodrift.torch.multipliers import ScaleFree, VirtualQueue

KEY = "drift_plus_penalty"  # of our part of a state_dict


@dataclasses.dataclass
class _Round:
    """What backward passes have left for the step: weighted sums over the batches of a round.

    Attributes:
        weight: of the batches, summed.
        values: of the constraints, (n,).
        sizes: |grad f|^2 and |grad g_i|^2 of those that are due; None where none is.
        jac: grad g_i, parameter by parameter, where the displacement counts.
    """

    weight: float
    values: torch.Tensor
    sizes: torch.Tensor | None
    jac: list[list[torch.Tensor]]


class DriftPlusPenalty(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimiser that keeps g(x) <= 0: it has a multiplier for each constraint, and no dual step to choose.

    `backward` leaves the gradient of f + sum_i lambda_i g_i in `.grad`, `step` lets the wrapped optimiser go, and then

        lambda_i' = [lambda_i + (0.1 / m) Lambda_i / sqrt(t E_i) g_i]_+

    where m is how many constraints are violated (1 at least), E_i an average of g_i^2 and Lambda_i the largest that the
    average of lambda_i has been, or |grad f| / |grad g_i| if that is larger (docs/laboratory/scalefree.md). No unit of
    the loss or of a constraint changes a run.

    With `penalty` = V_t it is the virtual queue of the paper: lambda_t = Q_t / V_t and

        Q_i' = [Q_i + g_i(x_t) + grad g_i(x_t) . (x_{t+1} - x_t)]_+

    so that SGD with learning rate V_t / (2 alpha_t) is `ed.dpp` (V_t = sqrt t, alpha_t = t) or `ed.edpp` on the whole
    space. That form asks for the Jacobian: n backward passes a step, one for each constraint.

    Losses and constraints of networks are not convex: nothing is promised but what was measured
    (docs/howto/networks.md).

    Args:
        optimizer: any of `torch.optim`, or one like them, that makes its step from `.grad`. Learning rates, parameter
            groups and state stay its own; schedulers and `GradScaler` take the wrapper.
        num_constraints: n; 0 is the optimiser without constraints.
        equalities: which constraints are equalities g_i = 0, by number, or by name where constraints come in a dict.
            Each is the pair g_i <= 0, -g_i <= 0.
        penalty: V, a number or a function of the round t = 1, 2, ...; the scale-free form unless given.
        displacement: whether the queue has the term grad g_i . (x_{t+1} - x_t); only with `penalty`, where it does
            unless told not to.
        every: rounds from one measurement of gradient sizes to the next; each takes two backward passes more.
        process_group: over which values are averaged; the default group, where there is one.

    Attributes:
        optimizer: the wrapped one.

    >>> import torch
    >>> x = torch.nn.Parameter(torch.zeros(2))
    >>> opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), num_constraints=1)
    >>> for _ in range(300):  # the nearest point to (1, 1) with x_1 + x_2 <= 1: there, lambda is 1
    ...     loss, constraint = ((x - 1) ** 2).sum(), x.sum() - 1
    ...     opt.zero_grad()
    ...     opt.backward(loss, constraint)
    ...     opt.step()
    >>> [round(value, 2) for value in [*x.tolist(), *opt.multipliers.tolist()]]
    [0.5, 0.5, 1.0]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_constraints: int,
        *,
        equalities: Sequence[int | str] = (),
        penalty: float | Callable[[int], float] | None = None,
        displacement: bool | None = None,
        every: int = 10,
        process_group: Any = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DriftPlusPenalty):
            raise TypeError(
                f"optimizer must be one of torch.optim, such as Adam(model.parameters()), got {optimizer!r}"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS looks along a line for a smaller loss, again and again in one step, and multipliers that stay "
                "the same meanwhile make that the wrong loss: take SGD or Adam"
            )
        refuse_ascent(optimizer.param_groups)
        refuse_shards(optimizer.param_groups)
        check_count("num_constraints", num_constraints, 0)
        check_count("every", every, 1)
        if penalty is None and displacement is not None:
            raise ValueError(
                f"displacement={displacement} goes with penalty=V: the scale-free form leaves that term out"
            )
        if penalty is not None and not callable(penalty) and not 0 < penalty < float("inf"):
            raise ValueError(f"penalty must be > 0 and finite, or a function of the round, got {penalty!r}")
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer = optimizer
        self._share()
        self.num_constraints, self.process_group = num_constraints, process_group
        self._equalities = list(dict.fromkeys(equalities))
        self._displacement = penalty is not None and displacement is not False
        pairs, like = self._resolve(None), _like(self.param_groups)
        self._like = like
        self._dual: ScaleFree | VirtualQueue
        if penalty is None:
            self._dual = ScaleFree(num_constraints, len(pairs), like, every)
        else:
            self._dual = VirtualQueue(num_constraints, len(pairs), like, penalty)
        self.names: list[str] | None = None
        self._bind(None, pairs)
        self._every = every
        self._round: _Round | None = None

    @property
    def multipliers(self) -> torch.Tensor:
        """lambda, (n,): what a unit of each constraint costs in units of the loss; of either sign for equalities."""
        return self._signed(self._dual.multipliers).clone()

    @property
    def queue(self) -> torch.Tensor:
        """Q, the n of the constraints and then one for -g_i <= 0 of each equality; without `penalty`, multipliers."""
        return self._dual.queue.clone()

    @property
    def t(self) -> int:
        """Rounds made so far."""
        return self._dual.t

    @torch.compiler.disable  # a compiled training step goes around all three: they keep what its tracer would not
    @torch.enable_grad()  # wherever loss.backward() may be called
    def backward(
        self,
        loss: torch.Tensor,
        constraints: Constraints | Values | None = None,
        *,
        proxy: Constraints | None = None,
        weight: float = 1.0,
        scaler: Any = None,
        retain_graph: bool = False,
    ) -> None:
        """In the place of `loss.backward()`: adds the gradient of weight (f + sum_i lambda_i g_i) to every `.grad`.

        Args:
            loss: f, a tensor of one number.
            constraints: g, wanted <= 0: a tensor (n,) for a batch or (batch, n) sample by sample, or a sequence or dict
                of n tensors, each () or (batch,). Samples are averaged.
            proxy: what to take gradients of, where the constraints themselves have none (rates, counts); the
                multipliers still go by the constraints, which may then be plain numbers. The same forms.
            weight: of this batch, where gradients of several are accumulated before a step: 1 / k for each of k.
            scaler: a `torch.amp.GradScaler`, which must not have scaled the loss already; then `scaler.step(opt)`.
            retain_graph: as in `loss.backward()`: whether somebody else will go back through the same graph.
        """
        n = self.num_constraints
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else loss
            raise TypeError(f"loss must be a tensor of one number, got {found!r}")
        if not loss.requires_grad:
            raise ValueError(
                "loss is detached: no parameter can be reached from it (torch.no_grad(), .item(), .detach()); where "
                "there is none and constraints are all, write 0 * constraints.sum()"
            )
        if not 0 < weight < float("inf"):
            raise ValueError(f"weight must be > 0 and finite, got {weight!r}: 1 / k for each of k batches")
        if n == 0 and constraints is None:
            constraints = ()
        names = self.names or (list(constraints) if isinstance(constraints, Mapping) else None)
        if names is None and any(isinstance(one, str) for one in self._equalities):
            raise TypeError(f"equalities={self._equalities} are names, so constraints must come in a dict")
        values = as_vector("constraints", constraints, n, names, graph=proxy is None)
        steered = values if proxy is None else as_vector("proxy", proxy, n, names, graph=True)
        like = self._like
        values = values.detach().to(like.device, like.dtype)
        if scaler is None:
            self._refuse_nonfinite(values, names, loss)
        if names is not None and self.names is None:
            ranks.agree(names, like, self.process_group)
            self._bind(names, self._resolve(names))
        self._check_groups()

        def scaled(output: torch.Tensor) -> torch.Tensor:
            return output if scaler is None else scaler.scale(output)

        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if all(p.grad is None for p in params):
            self._round = None  # forgotten by somebody else, as `model.zero_grad()` does
        done, due = self._round, self._dual.due()
        unit = torch.ones_like(like) if scaler is None else scaled(loss.new_ones(())).to(like.device, like.dtype)
        sizes = None if done is None else done.sizes
        if done is None and due:
            asked = [loss, *(steered[i] for i in due)]
            found = [gradients.size(gradients.of(scaled(one), params), like) for one in asked]
            sizes = torch.stack(found) / unit.square()
            if not self.t:
                warn_of_constants(params, values, due, sizes[1:], self.names)
        jac: list[list[torch.Tensor]] = []
        if self._displacement:
            every = (gradients.of(scaled(row), params) for row in steered)
            jac = [[weight / unit.to(grad.device) * grad for grad in row] for row in every]
        prices = self._signed(self._dual.shown(None if sizes is None else sizes[0]))
        lagrangian = loss.reshape(()).to(steered.dtype if n else loss.dtype)
        if n:
            lagrangian = lagrangian + (prices.to(steered.device, steered.dtype) * steered).sum().to(loss.device)
        scaled(weight * lagrangian).backward(retain_graph=retain_graph)
        if done is None:
            self._round = _Round(weight, weight * values, sizes, jac)
        else:
            added = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(done.jac, jac, strict=True)]
            self._round = _Round(done.weight + weight, done.values + weight * values, done.sizes, added)

    @torch.compiler.disable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The step of the wrapped optimiser, and then that of the multipliers.

        Args:
            closure: if given, called once: it must call `zero_grad` and `backward`, and what it returns is returned.
        """
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        done = self._round
        if done is None:
            raise RuntimeError("step() without backward(): call opt.backward(loss, constraints), not loss.backward()")
        self._check_groups()
        with torch.no_grad():
            values = done.values / done.weight
            values, sizes = ranks.averaged(values, done.sizes, self.process_group)
            self._refuse_nonfinite(values, self.names)  # with a scaler, only now are gradients known to be finite
            params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
            before = [p.detach().clone() for p in params] if self._displacement else []
            self.optimizer.step()
            change = None
            if self._displacement:
                moved = [p - old for p, old in zip(params, before, strict=True)]
                change = gradients.along(done.jac, moved, self._like) / done.weight
                change, _ = ranks.averaged(change, None, self.process_group)
                change = self._paired(change)
            self._dual.update(self._paired(values), change, sizes)
        self._round = None
        return value

    @torch.compiler.disable
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and constraint values of a round that was not stepped (a scaler may skip it)."""
        self.optimizer.zero_grad(set_to_none)
        self._round = None

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimiser, with our part under "drift_plus_penalty"; to be taken between rounds."""
        dual = self._dual
        ours = {name: getattr(dual, name) for name in dual.NUMBERS}
        ours |= {name: getattr(dual, name).clone() for name in dual.TENSORS}
        form = "scale-free" if isinstance(dual, ScaleFree) else "penalty"
        settings = {"form": form, "num_constraints": self.num_constraints, "pairs": self._pairs, "names": self.names}
        return {**self.optimizer.state_dict(), KEY: settings | ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; nothing is changed if it does not fit."""
        if KEY not in state_dict:
            raise ValueError(
                f"state_dict has no {KEY!r}: it is that of a plain optimiser. Load it into the one you wrap, "
                "opt.optimizer.load_state_dict(...), and multipliers begin at 0"
            )
        ours, mine = state_dict[KEY], self.state_dict()[KEY]
        for name in ("form", "num_constraints", "names", "pairs"):
            unknown = name in ("names", "pairs") and self.names is None  # constraints by name have not come yet
            if ours.get(name) != mine[name] and not unknown:
                raise ValueError(f"state_dict is of another {name}: {ours.get(name)!r}, and here it is {mine[name]!r}")
        pairs = self._resolve(ours["names"])
        if pairs != ours["pairs"]:
            raise ValueError(f"state_dict is of other equalities: {ours['pairs']}, and here they are {pairs}")
        self.optimizer.load_state_dict({name: part for name, part in state_dict.items() if name != KEY})
        self._share()
        dual = self._dual
        for name in dual.NUMBERS:
            setattr(dual, name, ours[name])
        for name in dual.TENSORS:
            old = getattr(dual, name)
            setattr(dual, name, ours[name].to(old.device, old.dtype, copy=True))
        self._bind(ours["names"], pairs)
        self._round = None

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler puts a function of its own in the place of `step`.
        return {name: value for name, value in self.__dict__.items() if name not in ("step", "_round")} | {
            "_round": None
        }

    def _share(self) -> None:
        """Groups and state are the wrapped optimiser's: what a scheduler changes here is changed there."""
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state

    def _check_groups(self) -> None:
        if self.param_groups is not self.optimizer.param_groups:
            self._share()  # someone has loaded a state into the wrapped optimiser
        refuse_ascent(self.param_groups)

    def _resolve(self, names: Sequence[str] | None) -> list[int]:
        """The numbers of the constraints that are equalities; until names are known, only as many."""
        known = range(self.num_constraints) if names is None else [*range(self.num_constraints), *names]
        by_name = [one for one in self._equalities if isinstance(one, str)]
        if wrong := [one for one in self._equalities if one not in known and (names or one not in by_name)]:
            raise ValueError(f"equalities must be numbers or names of constraints, of {list(known)}, got {wrong[0]!r}")
        if len(self._equalities) > self.num_constraints:
            raise ValueError(f"{len(self._equalities)} equalities, but num_constraints={self.num_constraints}")
        if names is None and by_name:
            return list(range(len(self._equalities)))
        found = [list(names or ()).index(one) if isinstance(one, str) else one for one in self._equalities]
        if len(set(found)) < len(found):
            raise ValueError(f"equalities name a constraint twice: {self._equalities}")
        return found

    def _bind(self, names: list[str] | None, pairs: list[int]) -> None:
        """Which multiplier is of which constraint: the n, and then one more for each equality."""
        self.names, self._pairs = names, pairs
        device = self._dual.queue.device
        self._dual.rows = torch.tensor([*range(self.num_constraints), *pairs], device=device, dtype=torch.long)

    def _paired(self, values: torch.Tensor) -> torch.Tensor:
        """One value for each multiplier: g, and then -g of the equalities."""
        return torch.cat([values, -values[self._pairs]]) if self._pairs else values

    def _signed(self, multipliers: torch.Tensor) -> torch.Tensor:
        """One multiplier for each constraint: what -g_i <= 0 has counts against g_i <= 0."""
        n = self.num_constraints
        if not self._pairs:
            return multipliers
        index = torch.tensor(self._pairs, device=multipliers.device)
        return multipliers[:n].index_add(0, index, -multipliers[n:])

    def _refuse_nonfinite(
        self, values: torch.Tensor, names: Sequence[str] | None, loss: torch.Tensor | None = None
    ) -> None:
        # Away from the processor each look waits for all that was asked of the device before: not in every round.
        if values.device.type == "cpu" or self.t % self._every == 0:
            refuse_nonfinite(values, names)
            if loss is not None and self.num_constraints and not loss.isfinite().all():
                raise ValueError(
                    f"loss is {loss.item()}, and so would be all parameters; neither they nor the multipliers have "
                    "been touched"
                )


def _like(groups: list[dict[str, Any]]) -> torch.Tensor:
    """A 0 of the device and type of multipliers: the first parameter's device, float32 or, if any has that, float64."""
    params = [p for group in groups for p in group["params"]]
    wide = any(p.dtype in (torch.float64, torch.complex128) for p in params)
    return torch.zeros((), device=params[0].device, dtype=torch.float64 if wide else torch.float32)
