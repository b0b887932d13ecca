"""CUDA's own run-time compiler, which comes with every JAX for NVIDIA GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from ergodrift._core.cuda.values import Unsupported

VERSIONS = ("13", "12")


@functools.cache
def library() -> ctypes.CDLL:
    """The compiler's library: the one of JAX's own packages first, then the system's."""
    for name in [*map(str, _packaged()), *(f"libnvrtc.so.{version}" for version in VERSIONS), "libnvrtc.so"]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise Unsupported("NVRTC, CUDA's compiler, is not installed")


def _packaged() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        for version in VERSIONS:
            yield from sorted(Path(place).glob(f"*/lib/libnvrtc.so.{version}"))


@functools.cache
def ptx(source: str, capability: str) -> str:
    """The source compiled for a compute capability such as "9.0", to the assembly that drivers take."""
    lib, program = library(), ctypes.c_void_p()
    _fits_driver(lib)
    made = lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if made:
        raise Unsupported(f"NVRTC fails with code {made}")
    options = [f"--gpu-architecture=compute_{capability.replace('.', '')}".encode(), b"--std=c++17"]
    options += [b"--prec-div=false", b"--prec-sqrt=false"]  # right to two units in the last place
    failed = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    try:
        if failed:
            raise Unsupported(f"NVRTC refuses the kernel: {_text(lib, program, 'ProgramLog')[:2000]}")
        return _text(lib, program, "PTX")
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _fits_driver(lib: ctypes.CDLL) -> None:
    """A driver takes no assembly from a later CUDA than its own."""
    major, minor, driver = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(driver))
    except OSError:
        return  # no driver: somebody compiles for elsewhere
    if driver.value < 1000 * major.value + 10 * minor.value:
        raise Unsupported(f"the driver is older than NVRTC {major.value}.{minor.value}")


def _text(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(lib, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()
