"""Optima, benchmarks in hindsight and feasibility, by solvers of another kind than the algorithms."""
