"""Replay golden files through the public API and say where anything differs.

    python tests/conformance.py FILE...

A file has the shape of `golden.json` or of `cases.json`: cases with a path, data, a domain and the expected rounds of
each algorithm, and optionally `chains`, `mlmc_weights` and `mean_N`. Any number of states, dimensions and parameters
may occur. Exits with 1, naming case, algorithm and step, where something differs by more than 1e-10.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ergodrift as ed
from ergodrift.methods.estimator import MultiLevel, mean_samples

TOLERANCE = 1e-10


def loss(x: Any, xi: Any) -> Any:
    return jnp.sum((xi["A"] @ x - xi["b"]) ** 2) / 2 + xi["c"] @ x


def constraints(x: Any, xi: Any) -> Any:
    return jnp.stack([xi["a"] @ x - xi["e"], jnp.sum((x - xi["o"]) ** 2) - xi["rho"]])


def geometry(case: dict[str, Any]) -> ed.Geometry:
    domain, entropic = case["domain"], case["mirror"].startswith("entropy")
    match domain["kind"]:
        case "ball":
            return ed.Ball(domain["radius"])
        case "box":
            bounds = [np.asarray(domain[name], dtype=float) for name in ("lo", "hi")]
            return ed.Box(*(float(bound) if bound.ndim == 0 else bound for bound in bounds))
        case "simplex":
            return ed.EntropySimplex() if entropic else ed.Simplex()
        case kind:
            raise ValueError(f"unknown domain {kind!r}")


def algorithm(name: str, params: dict[str, Any]) -> ed.Algorithm:
    match name.split("_")[0].upper():
        case "EDPP-T":
            return ed.edpp(params["tau_mix"], params["beta"], horizon=params.get("T"))
        case "DPP-T":
            return ed.dpp(horizon=params.get("T"))
        case "MDPP":
            return ed.mdpp(
                params["delta"], params["beta"], params["cap"], diameter=params["R"], add_delta=params["a_plus_delta"]
            )
        case "ADPP":
            return ed.adpp(params["beta"], diameter=params["R"])
        case "PD":
            return ed.pd(params["T"], params["G"], params["D"], params["radius"])
        case "PD2":
            return ed.pd2(params["G"], params["beta"], params["radius"], params["aggregate"])
        case _:
            raise ValueError(f"unknown algorithm {name!r}")


def replay(case: dict[str, Any], name: str, expected: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of what was expected and what came out, each with its name."""
    params, rounds = expected["params"], len(expected["x"]) - 1
    lengths = np.array(params.get("N", [1] * rounds))
    samples = np.concatenate([[0], np.cumsum(lengths)])
    data = {key: np.asarray(value, dtype=float) for key, value in case["data"].items()}
    states = len(data["e"])
    chain = ed.MarkovChain(np.full((states, states), 1 / states))
    result = ed.run(
        algorithm(name, params),
        ed.Problem(loss, constraints, geometry(case)),
        ed.MarkovSource(chain, data),
        x0=jnp.asarray(case["x1"]),
        num_samples=int(samples[-1]),
        record=samples,
        paths=np.asarray(case["states"])[: samples[-1]],
        levels=np.asarray(params["J"]) if "J" in params else None,
    )
    yield "x", expected["x"], result.x[0]
    yield "Q", expected["Q"], result.queue[0]
    yield "x_bar", expected["x_bar"], result.solution[0]
    yield "used", expected.get("used", samples[-1]), result.samples_used[0, -1]
    if "V" in expected:
        yield "V", expected["V"], result.weights.penalty[0, 1:]
        yield "alpha", expected["alpha"], result.weights.proximity[0, 1:]
    if "eta" in params:
        yield "eta", params["eta"], result.weights.primal[0, -1]
        yield "delta", params["delta"], result.weights.damping[0, -1] / result.weights.primal[0, -1]
    if "f_t" in expected:
        yield "f_t", expected["f_t"], np.diff(result.loss_sum[0])
        yield "g_t", expected["g_t"], np.diff(result.constraint_sum[0], axis=0)


def cases(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All cases of a file, whichever its shape; `states` may stand beside the cases or in each."""
    for number, case in enumerate(content.get("cases", [])):
        yield f"{case.get('name', 'case')}[{number}]", {"states": content.get("states"), **case}
    for name, case in content.items():
        if isinstance(case, dict) and "algorithms" in case:
            yield name, {"states": content.get("states"), **case}


def chain_facts(entry: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    chain = ed.MarkovChain(entry["P"])
    yield "stationary", entry["stationary"], chain.stationary
    yield "reversible", entry.get("reversible", chain.is_reversible), chain.is_reversible
    for eps, tau in entry.get("tau_mix", {}).items():
        yield f"tau_mix({eps})", tau, chain.mixing_time(float(eps))
    for t, distance in entry.get("d_mix", {}).items():
        yield f"d_mix({t})", distance, chain.distance(int(t))
    if "spectral" in entry:
        spectral = entry["spectral"]
        yield "eigenvalues", spectral["eigenvalues"], chain.eigenvalues
        # 1 / (1 - lambda) magnifies rounding by its square: compare these three relative to their own size squared.
        found = (chain.relaxation_time, *chain.mixing_time_bounds())
        for name, value in zip(("t_rel", "lower", "upper"), found, strict=True):
            scale = max(1.0, spectral["t_rel"]) ** 2
            yield name, spectral[name] / scale, value / scale


def mlmc_weights(chunk: list[int], num_states: int) -> np.ndarray:
    """The weight of each state in the estimate over one window, by feeding indicators as losses."""
    source = ed.SeriesSource(np.eye(num_states)[chunk])
    problem = ed.Problem(lambda x, xi: xi @ x, lambda x, xi: x[:1], ed.Ball(1.0))
    method = ed.mdpp(cap=len(chunk)).bind(problem)
    state = method.init(jnp.zeros(num_states), 1, jnp.array([max(len(chunk).bit_length() - 1, 1)]))
    info = None
    for xi in source.data:
        state, info = method.step(state, problem.feedback(state.x, xi))
    if info is None or not info.updated:
        raise ValueError(f"the window {chunk} did not close")
    return info.feedback.loss_grad


def named(case: str, found: Iterator[tuple[str, Any, Any]]) -> Iterator[tuple[str, str, Any, Any]]:
    """The facts of one case under its name; an error in it is one that fails, and the other cases go on."""
    try:
        yield from ((case, *fact) for fact in found)
    except Exception as error:
        yield case, f"{type(error).__name__}: {error}", 0.0, np.nan


def facts(content: dict[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(case, what, expected, found) for everything that the file states."""
    for case_name, case in cases(content):
        for name, expected in case["algorithms"].items():
            yield from named(f"{case_name} {name}", replay(case, name, expected))
    for entry in content.get("chains", []):
        yield from named(f"chain {entry.get('name', '?')}", chain_facts(entry))
    for entry in content.get("mlmc_weights", []):
        yield f"MLMC {entry['chunk']}", "weights", entry["weights"], mlmc_weights(entry["chunk"], len(entry["weights"]))
    for name, wanted in content.get("mean_N", {}).items():
        cap = int(name.split("_T")[1]) ** 2 if name.startswith("capT2_T") else int(name.removeprefix("cap"))
        yield f"E[N] {name}", "mean", wanted, mean_samples(cap)
        assert MultiLevel.with_cap(cap).max_level == cap.bit_length() - 1


def difference(wanted: Any, found: Any) -> str | None:
    """Where and by how much the two differ, or None."""
    wanted, found = np.asarray(wanted, dtype=float), np.asarray(found, dtype=float)
    if wanted.shape != found.shape:
        return f"expected shape {wanted.shape}, got {found.shape}"
    off = np.abs(wanted - found)
    bad = ~(off <= TOLERANCE)  # a NaN is bad
    if not bad.any():
        return None
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    step = f"step {first[0]}, " if first else ""
    return f"{step}index {first}: expected {wanted[first]!r}, got {found[first]!r} (off by {off[first]:.3g})"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay golden files and say where anything differs.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    checked = failed = 0
    with jax.enable_x64(True):
        for path in parser.parse_args(arguments).files:
            for case, what, wanted, found in facts(json.loads(path.read_text())):
                checked += 1
                if problem := difference(wanted, found):
                    failed += 1
                    print(f"{path.name}: {case}: {what}: {problem}")
    print(f"{checked - failed} passed, {failed} failed")
    return 1 if failed or not checked else 0


if __name__ == "__main__":
    raise SystemExit(main())
