"""Imported by the process that agents are forked from, and by nothing else: all that they need, and nothing begun."""

import gc
import importlib

for name in ("ray.cloudpickle", "ergodrift.distributed.actor"):
    importlib.import_module(name)
gc.collect()
gc.freeze()  # the collector writes to what it looks at, and a page that is written to is no longer shared
