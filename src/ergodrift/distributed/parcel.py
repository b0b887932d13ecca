"""What is sent to agents once: a problem or a loader, with the code of modules that agents may not have."""

from __future__ import annotations

import contextlib
import importlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def parcel(value: Any) -> bytes:
    """`value`, pickled. What it uses from modules of the user's own travels along; installed packages do not."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    library = tuple(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):
            if _is_own(module, library):
                stack.enter_context(_by_value(cloudpickle, module))
        return cloudpickle.dumps(value)


def opened(sent: bytes) -> Any:
    """What was sent. It may run code: an agent takes parcels from its hub alone."""
    return importlib.import_module("ray.cloudpickle").loads(sent)


def _is_own(module: Any, library: tuple[Path, ...]) -> bool:
    """Whether a module is the user's own. Scripts and notebooks are sent as they are, without a word from us."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str):
        return False
    if module.__name__.split(".")[0] in ("__main__", "ergodrift"):
        return False
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(path.is_relative_to(place) for place in library)


@contextlib.contextmanager
def _by_value(cloudpickle: Any, module: ModuleType) -> Iterator[None]:
    if module.__name__ in cloudpickle.list_registry_pickle_by_value() or sys.modules.get(module.__name__) is not module:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
