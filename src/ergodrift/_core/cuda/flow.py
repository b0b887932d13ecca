"""From a jaxpr to the text of a kernel: calls are taken apart, loops and branches become those of C."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ergodrift._core import tree
from ergodrift._core.cuda.shapes import apply
from ergodrift._core.cuda.values import Code, Rows, Small, Unsupported, Value, View, constant

Var: TypeAlias = Any  # a variable or literal of a jaxpr
Jaxpr: TypeAlias = Any
# Numbers that a loop changes. An inner loop has them in registers, which hold no more, and without them there is little
# to gain; one around it is gone through seldom, and can leave most of its own in memory meanwhile.
MOST_CARRIED, MOST_AROUND = 352, 1024
KEPT_WHOLE = {"sum_of_logs"}  # functions with a rule of their own
INNER = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
         "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr",
         "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_lin": "jaxpr"}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """One primitive, with variables that are its own wherever it was called from."""

    name: str
    inputs: list[Var]
    outputs: list[Var]
    parameters: dict[str, Any]


class Fresh:
    """A variable of a jaxpr that was called: its own for each call."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def key_axis(var: Var) -> int:
    """1 for a key, which is a pair of numbers here and has no such axis to JAX."""
    return int(jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key))


def is_literal(var: Var) -> bool:
    return hasattr(var, "val")


def flat(jaxpr: Jaxpr, inputs: Sequence[Var]) -> tuple[list[Op], list[Var]]:
    """The operations of a closed jaxpr and of all that it calls, and its outputs, for these inputs."""
    ops: list[Op] = []

    def inline(jaxpr: Jaxpr, inputs: Sequence[Var], consts: Sequence[Any]) -> list[Var]:
        env: dict[Var, Var] = dict(zip(jaxpr.invars, inputs, strict=True))
        env |= {var: Known(value) for var, value in zip(jaxpr.constvars, consts, strict=True)}

        def known(var: Var) -> Var:
            return var if is_literal(var) else env[var]

        for eqn in jaxpr.eqns:
            name, parameters = eqn.primitive.name, eqn.params
            given = [known(var) for var in eqn.invars]
            if name == "random_bits" and not getattr(eqn.ctx, "threefry_partitionable", True):
                raise Unsupported("random numbers as older versions of JAX drew them")
            whole = parameters.get("name") if name in ("jit", "pjit") else None
            if name in INNER and whole not in KEPT_WHOLE:
                inner = parameters[INNER[name]]
                body, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
                env |= zip(eqn.outvars, inline(body, given, consts), strict=True)
                continue
            own = [Fresh(var.aval) for var in eqn.outvars]
            env |= zip(eqn.outvars, own, strict=True)
            ops.append(Op(whole or name, given, own, {} if whole else parameters))
        return [known(var) for var in jaxpr.outvars]

    return ops, inline(jaxpr.jaxpr, inputs, jaxpr.consts)


class Known:
    """A constant of a jaxpr."""

    def __init__(self, val: Any) -> None:
        self.val, self.aval = val, jax.ShapeDtypeStruct(np.shape(val), val.dtype)


def needed(ops: Sequence[Op], outputs: Sequence[Var]) -> list[Op]:
    """The operations that the outputs depend on."""
    wanted, kept = {id(var) for var in outputs}, []
    for op in reversed(ops):
        if any(id(var) in wanted for var in op.outputs):
            kept.append(op)
            wanted |= {id(var) for var in op.inputs}
    return kept[::-1]


def unchanged(body: Jaxpr, consts: int) -> list[bool]:
    """Which parts of the carry the body of a loop returns as they were."""
    variables = [Fresh(var.aval) for var in body.jaxpr.invars]
    return [new is old for new, old in zip(flat(body, variables)[1], variables[consts:], strict=True)]


def has_loop(jaxpr: Jaxpr) -> bool:
    """Whether there is a loop in it whose length only the run knows."""
    inner = (getattr(value, "jaxpr", value) for eqn in jaxpr.eqns for value in eqn.params.values())
    return any(eqn.primitive.name == "while" for eqn in jaxpr.eqns) or any(
        has_loop(one) for one in inner if hasattr(one, "eqns")
    )


class Scope:
    """Writes a closed jaxpr into the code, at the place where that stands."""

    def __init__(self, code: Code) -> None:
        self.code, self.values = code, dict[int, tuple[Var, Value]]()

    def write(self, jaxpr: Jaxpr, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a closed jaxpr for these inputs."""
        variables = [Fresh(var.aval) for var in jaxpr.jaxpr.invars]
        for var, value in zip(variables, inputs, strict=True):
            self.values[id(var)] = var, value
        ops, outputs = flat(jaxpr, variables)
        self._schedule(needed(ops, outputs))
        return [self.read(var) for var in outputs]

    def read(self, var: Var) -> Value:
        if is_literal(var):
            if tree.is_traced(var.val):
                raise Unsupported(f"an array of shape {np.shape(var.val)} that a function has captured")
            return self.code.constant(var.val, np.dtype(var.aval.dtype))
        return self.values[id(var)][1]

    def _schedule(self, ops: Sequence[Op]) -> None:
        """All operations, those first that wait for no loop over rows: so that loops go over all that they can."""
        while ops:
            later, blocked = list[Op](), {id(one.into) for one in self.code.pending}
            late = set[int]()
            for op in ops:
                waits = any(
                    id(var) in late or (not is_literal(var) and id(self.values[id(var)][1]) in blocked)
                    for var in op.inputs
                )
                if waits:
                    later.append(op)
                    late |= {id(var) for var in op.outputs}
                    continue
                for var, value in zip(op.outputs, self._perform(op), strict=True):
                    self.values[id(var)] = var, value
                blocked |= {id(one.into) for one in self.code.pending}
            flushed = self.code.flush()
            assert flushed or not later
            ops = later
        self.code.flush()

    def _perform(self, op: Op) -> list[Value]:
        inputs = [self.read(var) for var in op.inputs]
        if op.name in FLOW:
            return FLOW[op.name](self, inputs, op.parameters, [var.aval for var in op.outputs])
        return apply(self.code, op.name, inputs, [var.aval for var in op.outputs], op.parameters)

    # Control flow

    def while_loop(self, inputs: list[Value], parameters: dict[str, Any], results: Sequence[Any]) -> list[Value]:
        code, (of_cond, of_body) = self.code, (parameters["cond_nconsts"], parameters["body_nconsts"])
        cond, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
        cond_given, body_given, start = (
            inputs[:of_cond],
            inputs[of_cond : of_cond + of_body],
            inputs[of_cond + of_body :],
        )
        fixed = unchanged(body, of_body)
        carry = self._carried(start, fixed, MOST_AROUND if has_loop(body.jaxpr) else MOST_CARRIED)
        with code.block("while (true)"):
            (ready,) = Scope(code).write(cond, cond_given + carry)
            code.line(f"if (!{code.small(ready).names.item()}) break;")
            after = Scope(code).write(body, body_given + carry)
            self._assign(carry, after, fixed)
        return carry

    def scan(self, inputs: list[Value], parameters: dict[str, Any], results: Sequence[Any]) -> list[Value]:
        body, length = parameters["jaxpr"], parameters["length"]
        # What is carried keeps its shape; what comes or goes turn by turn has one axis more outside. (How JAX says so
        # itself is another thing in every other version.)
        shapes = [var.aval.shape for var in body.jaxpr.invars], [var.aval.shape for var in body.jaxpr.outvars]
        turned = sum(value.shape[: len(value.shape) - key_axis(var)] != shape
                     for value, shape, var in zip(inputs, shapes[0], body.jaxpr.invars, strict=True))  # fmt: skip
        carried = sum(tuple(aval.shape) == shape for aval, shape in zip(results, shapes[1], strict=True))
        consts = len(inputs) - turned - carried
        given, carry, each = inputs[:consts], inputs[consts : consts + carried], inputs[consts + carried :]
        fixed = unchanged(body, consts)[:carried]
        carry = self._carried(carry, fixed)
        kept = [_blank(self.code, (length, *var.aval.shape), var.aval) for var in body.jaxpr.outvars[carried:]]
        each = [value if isinstance(value, View | Rows) else _in_array(self.code, value) for value in each]
        turn = self.code.fresh("i")
        with self.code.block(f"for (int {turn} = 0; {turn} < {length}; {turn}++)"):
            at = self.code.named(f"{length - 1} - {turn}" if parameters["reverse"] else turn, np.dtype("int32"))
            pieces = [self._piece(value, at) for value in each]
            out = Scope(self.code).write(body, given + carry + pieces)
            for array, value in zip(kept, out[carried:], strict=True):
                base, size = self.code.array(array), array.names.size // length
                for place, name in enumerate(self.code.small(value).names.flat):
                    self.code.line(f"{base}[{at} * {size} + {place}] = {name};")
            self._assign(carry, out[:carried], fixed)
        return [*carry, *kept]

    def _piece(self, value: Value, at: str) -> Value:
        """What a scan sees of an array at one turn."""
        if isinstance(value, View):
            aligned = value.aligned and value.strides[0] % 4 == 0
            offset = f"({value.offset} + {at} * {value.strides[0]})"
            return dataclasses.replace(
                value, shape=value.shape[1:], strides=value.strides[1:], offset=offset, aligned=aligned
            )
        if isinstance(value, Rows):
            if value.axis:
                raise Unsupported("a scan over the short axis of rows")
            return Small(self.code.at_row(value, at), value.dtype)
        names, base = np.empty(value.shape[1:], object), self.code.array(value)
        for place, index in enumerate(np.ndindex(names.shape)):
            names[index] = self.code.named(f"{base}[{at} * {names.size} + {place}]", value.dtype)
        return Small(names, value.dtype)

    def cond(self, inputs: list[Value], parameters: dict[str, Any], results: Sequence[Any]) -> list[Value]:
        which, *given = inputs
        branches = parameters["branches"]
        if isinstance(which, Small) and (known := re.fullmatch(r"\(\(int\)(\d+)\)", which.names.item())):
            return Scope(self.code).write(branches[int(known[1])], given)
        out = [_blank(self.code, aval.shape, aval) for aval in results]
        at = self.code.small(which).names.item()
        for number, branch in enumerate(branches):
            opening = f"if ((int){at} <= 0)" if number == 0 else f"else if ((int){at} == {number})"
            with self.code.block(opening if number < len(branches) - 1 else "else"):
                self._assign(out, Scope(self.code).write(branch, given), [False] * len(out))
        return list(out)

    def _carried(self, values: Sequence[Value], fixed: Sequence[bool], most: int = MOST_CARRIED) -> list[Value]:
        """What a loop changes as variables, the rest as it is."""
        count = sum(math.prod(value.shape) for value, same in zip(values, fixed, strict=True) if not same)
        if count > most:
            raise Unsupported(f"a loop that changes {count} numbers")
        return [value if same else self._variable(value) for value, same in zip(values, fixed, strict=True)]

    def _variable(self, value: Value) -> Small:
        """Numbers that a loop changes."""
        small = self.code.small(value)
        variables = self.code.variables(small.shape, small.dtype)
        for name, number in zip(variables.names.flat, small.names.flat, strict=True):
            self.code.line(f"{name} = {number};")
        return variables

    def _assign(self, variables: Sequence[Value], values: Sequence[Value], fixed: Sequence[bool]) -> None:
        """All at once: what is read is what was there before."""
        pairs = []
        for variable, value, same in zip(variables, values, fixed, strict=True):
            if not same:
                assert isinstance(variable, Small)
                names = zip(variable.names.flat, self.code.small(value).names.flat, strict=True)
                pairs += [(name, given, variable.dtype) for name, given in names if name != given]
        changed = {name for name, _, _ in pairs}
        copied = [(name, self.code.named(given, dtype) if given in changed else given) for name, given, dtype in pairs]
        for name, given in copied:
            self.code.line(f"{name} = {given};")


def _blank(code: Code, shape: tuple[int, ...], aval: Any) -> Small:
    """Room for what a branch or a scan gives; a key is a pair of numbers."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return code.variables((*shape, 2), np.dtype("uint32"))
    if code.long_axis(tuple(shape)) is not None:
        raise Unsupported("rows out of a branch or a scan")
    return code.variables(tuple(shape), np.dtype(aval.dtype))


def _in_array(code: Code, value: Small) -> Small:
    """The same numbers in an array of C."""
    base = code.array(value)
    return Small(np.array([f"{base}[{i}]" for i in range(value.names.size)], object).reshape(value.shape), value.dtype)


FLOW: dict[str, Callable[..., list[Value]]] = {
    "while": Scope.while_loop,
    "scan": Scope.scan,
    "cond": Scope.cond,
    "platform_index": lambda scope, inputs, parameters, results: [_platform(parameters["platforms"])],
}


def _platform(platforms: Sequence[Any]) -> Small:
    """The branch of `jax.lax.platform_dependent` for a GPU."""
    for number, names in enumerate(platforms):
        if names is None or {"cuda", "gpu"} & set(names):
            return constant(np.asarray(number), np.dtype("int32"))
    raise Unsupported("a function for other platforms")
