"""Imported by the process that agents are forked from, and by nothing else: all that they need, and nothing begun."""

import contextlib
import gc
import importlib

for name in ("ray.cloudpickle", "ergodrift.distributed.actor"):
    importlib.import_module(name)
for name in ("jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo"):
    # JAX imports them when it first compiles: each agent would have a copy of its own, of 5 MB. Not all versions do.
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
gc.collect()
gc.freeze()  # the collector writes to what it looks at, and a page that is written to is no longer shared
