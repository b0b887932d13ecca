"""A Ray cluster for the tests of walks, one for each worker of pytest, and a browser for those of pages."""

import logging
import os
import tempfile
import warnings

import pytest


@pytest.fixture(scope="session")
def cluster():
    """Ray, on a cluster of this machine alone, which is said to have one GPU."""
    ray = pytest.importorskip("ray", reason="walks over real agents need Ray: pip install 'ergodrift[ray]'")
    with tempfile.TemporaryDirectory(prefix="rw", dir="/tmp", ignore_cleanup_errors=True) as short:
        # Ray's sockets lie in its folder, and their names must be short.
        ours = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "XDG_STATE_HOME": short}  # agents' logs there
        before = {name: os.environ.get(name) for name in ours}
        os.environ |= ours
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forks, and of what Ray itself imports
            ray.init(
                num_cpus=2, num_gpus=1, include_dashboard=False, _temp_dir=f"{short}/r", log_to_driver=False,
                logging_level=logging.ERROR,
            )  # fmt: skip
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, without a window."""
    import browsing

    yield from browsing.browser(tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="session")
def network(cluster):
    """Agents that outlive tests: a process that has to start and compile takes seconds."""
    from ergodrift import distributed as dd
    from walks import agents

    with dd.Network(agents()) as network:
        yield network
