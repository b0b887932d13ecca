"""Optima by solvers that are not ours: SLSQP and HiGHS from SciPy, Clarabel by way of CVXPY."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy.optimize
import scipy.sparse

from ergodrift.peers.task import Optimum

Smooth: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # values (k,) and gradients (k, d) at x

BINDS = 1e-6  # constraints this near to 0, in units of their gradients, count as binding


def slsqp(loss: Smooth, constraints: Smooth, x0: np.ndarray, radius: float) -> Optimum:
    """min loss(x) subject to constraints(x) <= 0 and ||x|| <= radius, by sequential quadratic programming (Kraft 1988).

    Multipliers are the non-negative weights of the binding gradients that come nearest to cancelling the loss's.
    """

    def inside(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, jac = constraints(x)
        return np.append(values, (x @ x - radius**2) / (2 * radius)), np.vstack([jac, x / radius])

    limits: Any = {"type": "ineq", "fun": lambda x: -inside(x)[0], "jac": lambda x: -inside(x)[1]}
    x = x0
    for _ in range(3):  # again from where it stopped: it has gathered the curvature anew there
        found = scipy.optimize.minimize(
            lambda x: (loss(x)[0][0], loss(x)[1][0]),
            x,
            jac=True,
            constraints=limits,
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        x = found.x
    values, jac = inside(x)
    binding = np.flatnonzero(values > -BINDS * np.maximum(np.linalg.norm(jac, axis=1), 1e-300))
    weights = np.zeros(len(values))
    if binding.size:
        weights[binding] = scipy.optimize.nnls(jac[binding].T, -loss(x)[1][0])[0]
    return Optimum(x, float(loss(x)[0][0]), weights[:-1], "SLSQP (SciPy)")


def linear_program(
    cost: np.ndarray,
    rows: Any,
    limits: np.ndarray,
    bounds: list[tuple[float, float]],
    budgets: int,
    equal: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """min cost.z subject to rows z <= limits, equalities and bounds, by HiGHS: z and the multipliers of the last
    `budgets` rows."""
    left, right = (None, None) if equal is None else equal
    found = scipy.optimize.linprog(
        cost, A_ub=scipy.sparse.csr_array(rows), b_ub=limits, A_eq=left, b_eq=right, bounds=bounds, method="highs-ipm"
    )
    if found.status:
        raise RuntimeError(f"HiGHS did not solve the program: {found.message}")
    return found.x, -found.ineqlin.marginals[len(limits) - budgets :]


def convex_program(
    build: Callable[[Any], tuple[Any, Any, list[Any], list[Any]]],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Solve what `build(cvxpy)` describes, by Clarabel.

    Args:
        build: returns the variables, the loss, the constraints that count and those of the domain.

    Returns:
        The variables' values and the multipliers of the constraints that count.
    """
    try:
        import cvxpy as cp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this optimum is found by CVXPY: pip install cvxpy clarabel") from error
    variables, loss, limits, domain = build(cp)
    program = cp.Problem(cp.Minimize(loss), [*limits, *domain])
    for tolerance in (1e-10, 1e-9, 1e-8):  # the least that rounding allows; the last is Clarabel's own
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Solution may be inaccurate")
            program.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
        if program.status == cp.OPTIMAL:
            break
    else:
        raise RuntimeError(f"Clarabel did not solve the program: {program.status}")
    return [np.asarray(v.value, float) for v in variables], np.array([float(np.sum(c.dual_value)) for c in limits])
