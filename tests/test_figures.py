"""The figures of the pages: their scripts run, and draw what the pages say of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.x64("the scripts are processes of their own: once is enough")]

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SAID = {
    "drift_plus_penalty": "",
    "error_bars": "as if rows were independent 48\nergodrift 2\n",
    "mixing": "",
    "same_data": "as if independent: sure 27, wrong 6, misses 27\nergodrift: sure 2, wrong 0, misses 0\n",
}


def test_every_script_is_known():
    assert {path.stem for path in FIGURES.glob("*.py")} == {*SAID, "style"}
    assert {path.stem for path in FIGURES.glob("*.svg")} == {*SAID}


@pytest.mark.parametrize("name", SAID)
def test_script_draws_what_the_pages_say(name, tmp_path):
    shutil.copytree(FIGURES, tmp_path / "figures", ignore=shutil.ignore_patterns("*.svg"))
    command = [sys.executable, f"{tmp_path}/figures/{name}.py"]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    assert done.stdout.startswith(SAID[name])
    assert (tmp_path / "figures" / f"{name}.svg").read_text().startswith("<?xml")
