"""The command line as a user types it: without extras, into a folder with other results, and Ctrl-C at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from ergodrift import cli
from ergodrift.cli.common import UsageError, keep_others
from ergodrift.experiments import Config, configure

TINY = "seeds = 2\nsamples = 200\nrecords = 4\npoints = 16\n"


def environment(*first: Path) -> dict[str, str]:
    path = [*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)}


# Extras

BLOCKER = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("matplotlib", "ray"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


@pytest.mark.parametrize("arguments", [["reproduce"], ["theory"], ["walk"], ["peers"]], ids=lambda args: args[0])
def test_a_missing_extra_is_said_before_any_work(tmp_path, arguments):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ergodrift.cli", *arguments, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path), timeout=120)
    module, extra = ("ray", "ray") if arguments == ["walk"] else ("matplotlib", "plots")
    assert done.returncode == 2, done.stderr
    assert f"{module}, which cannot be imported here" in done.stderr
    assert f"pip install 'ergodrift[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not out.exists()


def test_a_broken_extra_is_said_too(tmp_path, monkeypatch, capsys):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('libfreetype is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["reproduce", "--out", str(tmp_path / "out")]) == 2
    assert "libfreetype is missing" in capsys.readouterr().err


def test_what_draws_nothing_needs_nothing(tmp_path, monkeypatch):
    """`theory --only bounds` has no figure: it goes on where matplotlib is not there."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    from ergodrift.experiments import theory

    monkeypatch.setattr(theory, "bounds_study", lambda *_, **__: (_ for _ in ()).throw(UsageError("reached")))
    assert cli.main(["theory", "--only", "bounds", "--out", str(tmp_path)]) == 2


# Another configuration


def reproduce(folder: Path, *more: str) -> int:
    return cli.main(["reproduce", "--config", str(folder / "tiny.toml"), "--out", str(folder / "out"), *more])


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder with a finished reproduction, and a list of those that are begun after it."""
    (tmp_path / "tiny.toml").write_text(TINY)
    config, begun = configure(file=tmp_path / "tiny.toml"), []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text(json.dumps({"config": {**vars(config), "tau_mix": config.tau_mix}}))
    monkeypatch.setattr(cli.reproduce, "write_report", lambda config, out, log: begun.append(config))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # this process has other tests to run
    return tmp_path, begun


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seeds", "3"], "seeds=2 there, 3 here"),
        (["--seed", "1", "--samples", "300"], "seed=0 there, 1 here; samples=200 there, 300 here"),
        (["--design", "wide"], "angles=[-30.0, 0.0, 30.0] there, [-45.0, 0.0, 45.0] here"),
    ],
)
def test_another_configuration_does_not_overwrite(written, capsys, more, said):
    folder, begun = written
    assert reproduce(folder, *more) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "pass another --out, or --force" in shown
    assert begun == []
    assert reproduce(folder, *more, "--force") == 0
    assert len(begun) == 1


def test_the_same_configuration_goes_on(written):
    folder, begun = written
    assert reproduce(folder) == 0
    assert len(begun) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"config": 3}', '{"config": {"seeds": 2}}'])
def test_a_file_that_says_nothing_of_its_configuration_is_not_overwritten(tmp_path, content):
    file = tmp_path / "results.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"does not say which configuration .*--force"):
        keep_others(file, ("config",), vars(Config()), force=False)
    keep_others(file, ("config",), vars(Config()), force=True)
    assert file.read_text() == content


def test_a_page_of_somebody_else_is_not_overwritten(written, capsys):
    folder, begun = written
    (folder / "out" / "results.json").unlink()
    (folder / "out" / "index.html").write_text("mine")
    assert reproduce(folder) == 2
    assert "index.html is there without results.json, so it is not of this command" in capsys.readouterr().err
    assert begun == []
    assert reproduce(folder, "--force") == 0
    assert len(begun) == 1


def test_theory_keeps_what_others_left(tmp_path, capsys):
    settings = {"problems": 1000, "samples": 4_096_000, "seeds": 64, "only": None}
    (tmp_path / "theory.json").write_text(json.dumps({"settings": settings}))
    assert cli.main(["theory", "--only", "slopes", "--out", str(tmp_path)]) == 2
    assert "only=None there, 'slopes' here" in capsys.readouterr().err


# Ctrl-C

SCRIPT = "import sys\nfrom ergodrift.cli import entry\nif __name__ == '__main__':\n    sys.exit(entry())\n"


@pytest.fixture
def listening():
    """A shell's background jobs, and their children, ignore Ctrl-C unless they ask for it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def started(process: subprocess.Popen[str]) -> None:
    """Wait until the package is being imported: before that Python itself is starting."""
    deadline = time.monotonic() + 60
    while "numpy" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.usefixtures("listening")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc to see how far a process is")
@pytest.mark.parametrize(
    ("way", "delay"), [*(("module", delay) for delay in (0.0, 0.1, 0.4, 1.0, 2.0)), ("script", 0.1), ("script", 1.0)]
)
def test_an_early_interrupt_is_one_line(tmp_path, way, delay):
    script = tmp_path / "ergodrift"
    script.write_text(SCRIPT)
    given = ["-m", "ergodrift.cli"] if way == "module" else [str(script)]
    command = [sys.executable, *given, "reproduce", "--out", str(tmp_path / "out")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env=environment(), **pipes)
    try:
        started(process)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, shown
    assert shown.strip().startswith("interrupted")
    assert len(shown.strip().splitlines()) == 1


@pytest.mark.usefixtures("listening")
def test_an_interrupt_while_garbage_is_collected_is_not_lost():
    """There Python ignores exceptions."""
    code = (
        "import gc, os, signal, time\n"
        "from ergodrift._core import interrupt\n"
        "interrupt.quietly(), interrupt.as_usual()\n"
        "def tidy(phase, info):\n"
        "    gc.callbacks.remove(tidy)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "gc.callbacks.append(tidy)\n"
        "try:\n"
        "    gc.collect()\n"
        "    time.sleep(20)\n"
        "except KeyboardInterrupt:\n"
        "    print('heard')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("heard", "")


@pytest.mark.usefixtures("listening")
def test_importing_the_package_leaves_ctrl_c_alone():
    code = "import signal, ergodrift; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0
