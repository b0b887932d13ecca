"""What is said at an agent stays in its own log: what goes wrong there, and what is printed."""

import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from test_actor import WALK, sent_spec, unsigned
from test_faults import SECRET, rows

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift.distributed import replies
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import LOG_BYTES, append, write
from walks import PROBLEM

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


def chatty():
    warnings.warn(f"odd {SECRET}", stacklevel=1)
    print("row", SECRET)
    print("row", SECRET, file=sys.stderr)
    return rows()


@pytest.mark.filterwarnings("default:odd")
def test_what_is_printed_at_an_agent_stays_in_its_log(tmp_path, capfd, monkeypatch):
    """Ray shows the output of actors to the hub."""
    file = tmp_path / "log"

    def shows(message, category, filename, lineno, file=None, line=None):  # as where pytest does not look
        print(warnings.formatwarning(message, category, filename, lineno, line), file=sys.stderr)

    monkeypatch.setattr(warnings, "showwarning", shows)
    shown = sys.stdout, sys.stderr

    def loss(x, xi):
        print("traced", SECRET)
        return PROBLEM.loss(x, xi)

    actor = AgentActor(unsigned(dd.Agent(chatty, log=file)), 0)
    said = actor.prepare(WALK, sent_spec(ed.Problem(loss, PROBLEM.constraints, ed.Ball(1.5))))
    assert isinstance(replies.parsed(said), replies.Ready)
    assert (sys.stdout, sys.stderr) == shown
    assert str(SECRET) not in "".join(capfd.readouterr())
    text = file.read_text()
    assert text.count(f"row {SECRET}\n") == 2
    assert f"UserWarning: odd {SECRET}" in text
    assert f"traced {SECRET}\n" in text


def test_a_log_is_cut_and_one_that_cannot_be_written_is_passed_over_in_silence(tmp_path, monkeypatch, capfd):
    file = tmp_path / "log"
    for number in range(12):
        append(file, f"{number}" + "x" * 100_000)
    assert 0 < file.stat().st_size <= LOG_BYTES + 100_002
    assert Path(f"{file}.1").read_text().startswith("0x")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(Path, "open", lambda *_, **__: os.fdopen(os.open("/dev/full", os.O_WRONLY), "w"))
        write(file, ValueError("row"))
    append(tmp_path / "log" / "below", "row \ud800")  # no folder: it goes elsewhere, whatever it holds
    assert (tmp_path / f"ergodrift-{os.getuid()}" / "below").read_text() == "row \\ud800"
    assert capfd.readouterr() == ("", "")
