"""An agent: where its data are, where it runs, and what it lets out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from ergodrift._core import check
from ergodrift._core.arrays import as_arrays
from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.masks import Secure
from ergodrift.distributed.privacy import Privacy
from ergodrift.distributed.replies import Ready
from ergodrift.types import PyTree

READERS = (".npy", ".npz", ".parquet", ".arrow", ".feather")


@dataclasses.dataclass(frozen=True, eq=False)
class Agent:
    """One node of the network. Its data are loaded by its own process, where that runs, and never leave it.

    Attributes:
        data: xi, what `loss(x, xi)` and `constraints(x, xi)` are given: a function without arguments that returns it, a
            file (`.npy`; `.npz`, `.parquet`, `.arrow` and `.feather` give a dict of columns, all of numbers), or, for
            trials, the arrays themselves, which are then sent to the agent once. Tables, lists and tensors become
            arrays as in a `SeriesSource`.
        name: how errors and summaries call it; "agent 3" unless given.
        resources: Ray resources that its node must have, such as {"site:a": 0.01}; {"CPU": 1} keeps a core for it.
        privacy: what is done to every answer before it leaves; nothing unless given.
        log: the file, where the agent runs, for what must not leave: the texts of errors, which may hold rows. Without
            one it is `ergodrift/NAME.log` in $XDG_STATE_HOME, which is ~/.local/state unless set.
        secure: where given, it answers only together with others, and only their sum can be read (`Secure`).

    On a machine with a `Site` file, that says what its agents are: give None for the data here.
    """

    data: PyTree | Callable[[], PyTree] | str | Path
    name: str | None = None
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    privacy: Privacy | None = None
    log: str | Path | None = None
    secure: Secure | None = None

    def __post_init__(self) -> None:
        if isinstance(self.data, str | Path) and Path(self.data).suffix not in READERS:
            raise ValueError(f"data: a file must end in one of {', '.join(READERS)}, got {str(self.data)!r}")
        for resource, amount in self.resources.items():
            check.number(f"resources[{resource!r}]", amount, above=0)
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise TypeError(f"privacy must be a Privacy(clip=...), got {self.privacy!r}")
        if self.secure is not None and not isinstance(self.secure, Secure):
            raise TypeError(f"secure must be a Secure(), got {self.secure!r}")

    def load(self) -> PyTree:
        """The data, as a pytree of arrays; called in the agent's own process."""
        data = self.data
        if isinstance(data, Callable):
            data = data()
        elif isinstance(data, str | Path):
            data = _read(Path(data))
        data = jax.tree.map(np.asarray, as_arrays("data", data))
        if not jax.tree.leaves(data):
            raise RefusalError("arrays")
        for path, leaf in jax.tree_util.tree_leaves_with_path(data):
            if not leaf.size:
                raise RefusalError("rows", f"data{jax.tree_util.keystr(path)} has the shape {leaf.shape}")
        try:
            check.finite("data", data)
        except ValueError as error:
            raise RefusalError("finite", str(error)) from error
        return data


def guards_of(agents: Sequence[Agent], ready: Mapping[int, Ready]) -> list[Privacy | None]:
    """How each agent guards its answers: by its own word where it has one, since the owner of its machine may want more
    than the hub has said."""

    def guard(number: int, agent: Agent) -> Privacy | None:
        if number not in ready:
            return agent.privacy
        told = ready[number].privacy
        return Privacy(*told) if told else None

    return [guard(number, agent) for number, agent in enumerate(agents)]


def _read(path: Path) -> PyTree:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    try:
        import pyarrow  # noqa: F401 # type: ignore[reportUnusedImport]
    except ImportError:
        raise ImportError(f'reading {path} needs pyarrow: pip install "ergodrift[ray]"') from None
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_table
    else:
        read_table = _read_arrow
    return read_table(path)


def _read_arrow(path: Path) -> PyTree:
    """A file of Arrow's file format, which is Feather's too, or of its stream format, which has no mark of its own."""
    import pyarrow
    from pyarrow.feather import read_table

    with path.open("rb") as file:
        start = file.read(6)
        if start == b"ARROW1" or start.startswith(b"FEA1"):
            return read_table(path)
        file.seek(0)
        return pyarrow.ipc.open_stream(file).read_all()
