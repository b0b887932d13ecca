"""What is asked of XLA, the compiler under JAX. It reads its flags once, when the first computation starts it."""

from __future__ import annotations

import functools
import os

# XLA's CPU backend runs the body of a loop as a list of kernels, tens of nanoseconds apart, unless the loop touches so
# few bytes a turn that it compiles it into a single function. By default that is a kilobyte; with a megabyte a round on
# a few thousand data points is one function too, and takes half the time.
LOOP_BYTES = 2**20
FLAG = "--xla_backend_extra_options"
SWITCH = "ERGODRIFT_XLA_FLAGS"  # in the environment: "off" leaves XLA_FLAGS alone
OPTIONS = {"xla_cpu_prefer_vector_width": "512"}  # LLVM's own choice is 256 even where registers are wider


def set_flags() -> None:
    """Ask for loops as single functions, unless the environment already sets options of this kind, or says not to.

    The flag is one that every XLA knows, and what stands in it is read by its CPU backend alone. It is added to those
    that are there; whoever else compiles in this process or its children, and reads them, gets the same numbers.
    """
    wanted = os.environ.get(SWITCH, "on")
    if wanted not in ("on", "off"):
        raise ValueError(f"{SWITCH} must be 'on' or 'off', got {wanted!r}")
    flags = os.environ.get("XLA_FLAGS", "")
    if wanted == "on" and FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}=xla_cpu_small_while_loop_byte_threshold={LOOP_BYTES}".strip()


@functools.cache
def options() -> dict[str, str]:
    """Those of our compiler options that this version of XLA knows."""
    import jax  # here: the flags are set without it

    try:
        jax.jit(lambda: 0, compiler_options=OPTIONS)()
    except jax.errors.JaxRuntimeError:
        return {}
    return OPTIONS
