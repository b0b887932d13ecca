"""Whose data a process was loading when it ended is known to those after it, and after two deaths left alone."""

import contextlib
import os
import subprocess
import sys
import uuid

import pytest

from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.loading import Loading

LOADER = """
import os, sys
from ergodrift.distributed.loading import Loading
loading = Loading(sys.argv[1])
with loading.of(4):
    pass
with loading.of(int(sys.argv[2])):
    os._exit(1)
"""


@pytest.fixture
def name():
    name = uuid.uuid4().hex
    yield name
    Loading(name).end()


def dies(name, agent):
    command = [sys.executable, "-c", LOADER, name, str(agent)]
    assert subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False).returncode == 1


@pytest.mark.slow
def test_two_deaths_are_one_too_many(name):
    for agent in (7, 5, 7):
        with Loading(name).of(agent):
            pass
        dies(name, agent)
    with (
        pytest.raises(RefusalError, match="its process ended whenever it loaded this agent's data"),
        Loading(name).of(7),
    ):
        pytest.fail("it was loaded")
    for agent in (4, 5):  # one that was loaded well, and one that died once, which may be anybody's fault
        with Loading(name).of(agent):
            pass


def test_what_is_raised_is_no_death_and_nothing_is_left_behind(name):
    loading = Loading(name)
    for _ in range(3):
        with contextlib.suppress(ValueError), loading.of(1):
            raise ValueError
    assert not Loading(name).deaths
    assert loading.path.stat().st_mode & 0o777 == 0o600
    loading.end()
    assert not loading.path.exists()
