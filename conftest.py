"""Tests run with 64-bit numbers on, or with `--x64=off` as users find JAX; always without silent promotions."""

import jax
import pytest


def pytest_addoption(parser):
    """`--x64=off`."""
    parser.addoption("--x64", choices=["on", "off"], default="on", help="run with 64-bit numbers in JAX, or without")


def pytest_configure(config):
    """Set JAX before anything is imported that uses it."""
    jax.config.update("jax_enable_x64", config.getoption("x64") == "on")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_modifyitems(config, items):
    """Without 64-bit numbers, skip what needs them."""
    if config.getoption("x64") == "on":
        return
    for item in items:
        marker = item.get_closest_marker("x64")
        examples = item.dtest.examples if isinstance(item, pytest.DoctestItem) else []
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs 64-bit numbers: {marker.args[0]}"))
        elif any("float64" in example.want for example in examples):
            item.add_marker(pytest.mark.skip(reason="needs 64-bit numbers: it prints some"))
