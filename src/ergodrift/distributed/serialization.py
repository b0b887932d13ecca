"""What is sent to agents once: a problem or a loader, with the code of modules that agents may not have."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Hashable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
from jax._src import tree_util

from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.masks import imported
from ergodrift.types import PyTree

# How classes were made pytrees; JAX has no public way to ask for that.
REGISTERED: dict[type, Any] = tree_util._registry  # type: ignore[reportPrivateUsage]

Setter = Callable[[type, object], object]
Flatten = Callable[[PyTree], tuple[Iterable[PyTree], Hashable]]
Unflatten = Callable[[Hashable, Iterable[PyTree]], PyTree]


SIGNATURE_BYTES = 64  # of Ed25519 (RFC 8032), before what is signed; all 0 where nobody signs


def serialize(value: object, key: str | os.PathLike[str] | None = None) -> bytes:
    """`value`, pickled. What it uses from modules of the user's own travels along; installed packages do not.

    Args:
        value: what to send.
        key: the file with the hub's private key (Ed25519, PEM), to sign it with.
    """
    pickled = _pickled(value)
    return (bytes(SIGNATURE_BYTES) if key is None else _private_key(key).sign(pickled)) + pickled


def deserialize(sent: bytes, keys: Iterable[str | os.PathLike[str]] = ()) -> PyTree:
    """What was sent. Unpickling may run any code: where `keys` are given, files with the public keys of hubs, it is
    done only if one of them has signed it."""
    signature, pickled = sent[:SIGNATURE_BYTES], sent[SIGNATURE_BYTES:]
    known = [_public_key(key) for key in keys]
    if known and not any(_has_signed(key, signature, pickled) for key in known):
        raise RefusalError("key")
    return _cloudpickle().loads(pickled)


def _private_key(path: str | os.PathLike[str]) -> Any:
    return _key("load_pem_private_key", path, password=None)


def _public_key(path: str | os.PathLike[str]) -> Any:
    return _key("load_pem_public_key", path)


def _key(load: str, path: str | os.PathLike[str], **options: object) -> Any:
    """The key in a file, which must be one of Ed25519."""
    primitives: Any = imported("cryptography.hazmat.primitives.serialization")
    key = getattr(primitives, load)(Path(path).read_bytes(), **options)
    if not type(key).__name__.startswith("Ed25519"):
        raise ValueError(f"{path} holds a key of another kind; make one by: openssl genpkey -algorithm ed25519")
    return key


def _has_signed(key: Any, signature: bytes, pickled: bytes) -> bool:
    try:
        key.verify(signature, pickled)
    except imported("cryptography.exceptions").InvalidSignature:
        return False
    return True


def _pickled(value: object) -> bytes:
    cloudpickle = _cloudpickle()

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, obj: object) -> object:
            reduced = super().reducer_override(obj)
            registered = REGISTERED.get(obj) if isinstance(obj, type) else None
            if registered is None or not isinstance(reduced, tuple) or len(reduced) != 6:  # not a class sent by value
                return reduced
            make, (metaclass, *arguments), state, *_, set_state = reduced
            state = state, set_state, registered.to_iter, registered.from_iter
            return make, (functools.partial(_unannounced, metaclass), *arguments), state, None, None, _set_class_state

    library = tuple(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))
    with contextlib.ExitStack() as stack, io.BytesIO() as file:
        for module in list(sys.modules.values()):
            if _is_own(module, library):
                stack.enter_context(_by_value(cloudpickle, module))
        Pickler(file).dump(value)
        return file.getvalue()


def _cloudpickle() -> ModuleType:
    return importlib.import_module("ray.cloudpickle")


class _Empty:
    pass


def _unannounced(metaclass: type, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> type:
    """A class of which its bases are not told: those that register it would do so before it has any fields."""
    cls = metaclass(name, (_Empty,), namespace)
    try:
        cls.__bases__ = bases
    except TypeError:  # objects of built-in bases lie otherwise in memory
        return metaclass(name, bases, namespace)
    return cls


def _set_class_state(cls: type, state: tuple[object, Setter, Flatten, Unflatten]) -> None:
    """Fill in a class that came by value, and make it the pytree that it is where it was defined."""
    given, set_state, flatten, unflatten = state
    set_state(cls, given)
    if cls not in REGISTERED:
        jax.tree_util.register_pytree_node(cls, flatten, unflatten)


def _is_own(module: object, library: tuple[Path, ...]) -> bool:
    """Whether a module is the user's own. Scripts and notebooks are sent by value whether or not they are named."""
    file = getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not isinstance(file, str):
        return False
    if module.__name__.split(".")[0] in ("__main__", "ergodrift"):
        return False
    path = Path(file)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not any(path.is_relative_to(place) for place in library)


@contextlib.contextmanager
def _by_value(cloudpickle: ModuleType, module: ModuleType) -> Generator[None]:
    if module.__name__ in cloudpickle.list_registry_pickle_by_value() or sys.modules.get(module.__name__) is not module:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
