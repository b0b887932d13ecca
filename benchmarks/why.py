"""Where the time goes: each thing that makes a round cheap, taken away in turn. EDPP-t, the paper's problem, float32.

Each case is a process of its own, since XLA reads its flags once.

    python benchmarks/why.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import jax
import numpy as np
from common import TAU_MIX, best_of, setting, write

import ergodrift as ed
from ergodrift._core import xla
from ergodrift.data import tables
from ergodrift.engine import loop
from ergodrift.problem import links, problem

KERNELS = {"XLA_FLAGS": f"{xla.FLAG}=xla_cpu_small_while_loop_byte_threshold=1024"}  # XLA's own limit


def no_wide_vectors():
    xla.options = lambda: {}


def side_by_side():
    """As on a GPU: `vmap` over seeds."""
    loop.advance = lambda spec, *at, platform: loop._advance(spec, loop.Place(*at[:4]), at[4], loop.ALL)


def not_turned():
    tables.stored = jax.numpy.asarray


def logarithms_of_xla():
    """Users' functions as they are."""
    problem.rewritten = links.rewritten = lambda function: function


def fair(link=None):
    model, samples, _ = setting()
    return model if link is None else ed.LinearModel(link, model.geometry), samples


def naive(log1p=False):
    from one_seed import naive

    return naive(fair()[1], log1p)


def softplus(margins):
    return jax.nn.softplus(-margins)


CASES = {
    "as it is": (None, fair, 1, {}),
    "loops as lists of kernels": (None, fair, 1, KERNELS),
    "256-bit vectors": (no_wide_vectors, fair, 1, {}),
    "derivatives by JAX, sums not in lanes": (None, lambda: fair(softplus), 1, {}),
    "20 seeds, each": (None, fair, 20, {}),
    "20 seeds side by side, each": (side_by_side, fair, 20, {}),
    "a plain loss, softplus": (None, naive, 1, {}),
    "a plain loss, softplus, samples not turned": (not_turned, naive, 1, {}),
    "a plain loss, softplus, logarithms of XLA": (logarithms_of_xla, naive, 1, {}),
    "a plain loss, log1p, logarithms of XLA": (logarithms_of_xla, lambda: naive(True), 1, {}),
}


def one(name, rounds):
    change, make, seeds, _ = CASES[name]
    if change is not None:
        change()
    model, samples = make()

    def run():
        options = {"x0": np.zeros(3, np.float32), "num_samples": rounds // seeds, "seeds": seeds, "record": 1}
        return ed.run(ed.edpp(TAU_MIX), model, samples, **options).x

    best_of(1, run)
    return best_of(5, run)[0] / rounds * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40_000)
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one, options.rounds)))
        return
    rows = {}
    for name, (*_, environment) in CASES.items():
        command = [sys.executable, __file__, "--one", name, "--rounds", str(options.rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
        rows[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"  {name:44}{rows[name]:8.2f} us per round", flush=True)
    write("why", {"unit": "microseconds per round and seed", "rounds": options.rounds, "rows": rows})


if __name__ == "__main__":
    main()
