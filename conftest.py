"""Tests run with 64-bit numbers on, or with `--x64=off` as users find JAX; always without silent promotions."""

import gc
import importlib.util
import os
import tempfile
from collections import Counter
from pathlib import Path

import jax
import pytest

TORCH = [Path(__file__).parent / "src" / "ergodrift" / "torch", Path(__file__).parent / "tests" / "pytorch"]
collect_ignore = [] if importlib.util.find_spec("torch") else [str(folder) for folder in TORCH]
LONG = Path(__file__).parent / "tests" / "long.txt"  # tests whose first case takes more than a second
# Where every case may round, or be promoted, in a way of its own.
PRECISE = [
    Path(__file__).parent / "tests" / room
    for room in (
        "adversarial",
        "geometry",
        "methods",
        "_core/test_precision.py",
        "engine/test_run.py",
        "test_conformance.py",
    )
]


def pytest_addoption(parser):
    """`--x64=off`, `--paths-once`, `--quick` and `--note-long`."""
    parser.addoption("--x64", choices=["on", "off"], default="on", help="run with 64-bit numbers in JAX, or without")
    parser.addoption("--paths-once", action="store_true", help="the first case, but where precision is the matter")
    parser.addoption("--quick", action="store_true", help="the first case of each short test")
    parser.addoption("--note-long", action="store_true", help="write anew which tests are not short (tests/long.txt)")


def pytest_configure(config):
    """Set JAX before anything is imported that uses it."""
    share_compiled_programs(config)
    jax.config.update("jax_enable_x64", config.getoption("x64") == "on")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")


def share_compiled_programs(config):
    """What one process compiles the others load: the workers of pytest, those that tests start, new functions alike.

    Nothing is hidden by it: the same programs are traced, counted and logged, and XLA's output is read from a folder
    that goes with the session. Name one in JAX_COMPILATION_CACHE_DIR to keep it from run to run.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="jax", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_finish():
    """What libraries and test files hold stays: nobody has to look through it for garbage again and again."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """What a file has compiled goes at its end: a process grows by two megabytes with each program it keeps."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def precision_as_asked(pytestconfig):
    """Commands set the precision of their process; a test that calls one leaves it as it was."""
    yield
    jax.config.update("jax_enable_x64", pytestconfig.getoption("x64") == "on")


def pytest_itemcollected(item):
    """Who asks for a cluster or for a browser is marked, and so is what belongs to PyTorch."""
    for fixture, marker in [("cluster", "ray"), ("browser", "browser")]:
        if fixture in getattr(item, "fixturenames", ()):
            item.add_marker(marker)
    if any(folder in item.path.parents for folder in TORCH):
        item.add_marker("torch")


def function(nodeid):
    """The test, whatever its case."""
    return nodeid.split("[")[0]


def keep(config, items, kept):
    """Deselect all the others."""
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config, items):
    """Leave out the cases that were not asked for; without 64-bit numbers, skip what needs them."""
    if config.getoption("quick") or config.getoption("note_long"):
        long = set(LONG.read_text().splitlines()) if config.getoption("quick") else set()
        first = {function(item.nodeid): item for item in reversed(items) if function(item.nodeid) not in long}
        keep(config, items, set(first.values()))
    if config.getoption("paths_once"):
        runs = sorted(items, key=lambda item: item.get_closest_marker("x64") is not None)  # what is skipped comes last
        first = {function(item.nodeid): item for item in reversed(runs)}
        whole = {item for item in items if any(room in (item.path, *item.path.parents) for room in PRECISE)}
        keep(config, items, whole | set(first.values()))
    if config.getoption("x64") == "on":
        return
    for item in items:
        marker = item.get_closest_marker("x64")
        examples = item.dtest.examples if isinstance(item, pytest.DoctestItem) else []
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs 64-bit numbers: {marker.args[0]}"))
        elif any("float64" in example.want for example in examples):
            item.add_marker(pytest.mark.skip(reason="needs 64-bit numbers: it prints some"))


def pytest_terminal_summary(terminalreporter, config):
    """Note the tests that took more than a second."""
    if config.getoption("note_long"):
        seconds = Counter()
        for report in terminalreporter.stats.get("", []) + terminalreporter.stats.get("passed", []):
            seconds[function(report.nodeid)] += report.duration  # "": setting up and tearing down
        LONG.write_text("".join(f"{name}\n" for name in sorted(seconds) if seconds[name] > 1))
