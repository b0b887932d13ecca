"""The flags that are set at import: the user's own are kept, there is a switch, and nobody else is harmed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from ergodrift._core import xla

pytestmark = pytest.mark.x64("processes of their own: once is enough")

THEIRS = """
import jax, jax.numpy as jnp

def theirs(x):
    x = jax.lax.fori_loop(0, 50, lambda i, x: jnp.sin(x @ x.T) @ x / 9 + i * 0.01, x)
    return jax.lax.scan(lambda c, row: (c + row, jnp.cumsum(c)), x[0], x)[1].sum()

def total():
    return [jax.device_count(), float(jax.jit(theirs)(jnp.linspace(0, 1, 640).reshape(64, 10)))]
"""


def python(code, **environment):
    """What a fresh process prints; variables that are None are not set."""
    full = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    full = {name: value for name, value in full.items() if value is not None}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=full, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_environment_says_whether_flags_are_set():
    code = "import os, ergodrift; print(os.environ.get('XLA_FLAGS'))"
    mine = "--xla_cpu_enable_fast_math=false"
    assert python(code, XLA_FLAGS=None, ERGODRIFT_XLA_FLAGS="off") == "None"
    assert python(code, XLA_FLAGS=mine, ERGODRIFT_XLA_FLAGS="off") == mine
    assert python(code, XLA_FLAGS=mine, ERGODRIFT_XLA_FLAGS=None).startswith(f"{mine} {xla.FLAG}=")


def test_another_word_than_on_or_off_is_refused(monkeypatch):
    monkeypatch.setenv("ERGODRIFT_XLA_FLAGS", "no")
    with pytest.raises(ValueError, match="ERGODRIFT_XLA_FLAGS must be 'on' or 'off', got 'no'"):
        xla.set_flags()


@pytest.mark.slow
def test_flags_are_harmless_to_whoever_else_compiles():
    """Functions of others in this process, in one that is forked from it, and in one that is started anew."""
    code = f"""
import json, os, subprocess, sys
import ergodrift
code = {THEIRS!r}
exec(code)
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, json.dumps(total()).encode())
    os._exit(0)
found = [total(), json.loads(os.read(reader, 1000))]
anew = subprocess.run([sys.executable, "-c", code + "print(total())"], capture_output=True, check=True)
print(json.dumps([*found, json.loads(anew.stdout)]))
"""
    devices = "--xla_force_host_platform_device_count=3"
    plain, flagged = (json.loads(python(code, XLA_FLAGS=devices, ERGODRIFT_XLA_FLAGS=on)) for on in ("off", "on"))
    assert all(count == 3 for count, _ in plain + flagged)  # the user's own flag holds
    np.testing.assert_allclose([value for _, value in plain + flagged], plain[0][1], rtol=1e-5)
