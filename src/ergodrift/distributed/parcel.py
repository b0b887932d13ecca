"""What is sent to agents once: a problem or a loader, with the code of modules that agents may not have."""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def parcel(value: Any, *functions: Callable[..., Any]) -> bytes:
    """`value`, pickled; the modules of these functions travel along, unless they are installed packages."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    with contextlib.ExitStack() as stack:
        for module in {id(module): module for module in map(_own_module, functions) if module}.values():
            stack.enter_context(_by_value(cloudpickle, module))
        return cloudpickle.dumps(value)


def opened(sent: bytes) -> Any:
    """What was sent. It may run code: an agent takes parcels from its hub alone."""
    return importlib.import_module("ray.cloudpickle").loads(sent)


def _own_module(function: Callable[..., Any]) -> ModuleType | None:
    """The module a function comes from, if it is the user's own; those of a script or notebook are sent anyway."""
    while hasattr(function, "func"):
        function = function.func  # type: ignore[attr-defined]
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__" or name.split(".")[0] == "ergodrift":
        return None
    installed = {Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if any(Path(file).is_relative_to(place) for place in installed) else module


@contextlib.contextmanager
def _by_value(cloudpickle: Any, module: ModuleType) -> Iterator[None]:
    if module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
