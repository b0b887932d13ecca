"""Ctrl-C while the command line is still importing: one line and the shell's exit code, in place of a traceback.

Imports take a second or two, before any code of a command can catch anything. This module is the first that the package
imports, imports little itself, and does nothing unless the process is the command `ergodrift` or `python -m
ergodrift.cli`. (In the first twentieth of a second Python itself is starting, and answers for itself.)
"""

from __future__ import annotations

import os
import signal
import sys
import threading

INTERRUPTED = 130  # the shell's exit code for Ctrl-C


def is_command() -> bool:
    """Whether this process was started as the command line, not as a program that imports the package."""
    if sys.argv[:1] == ["-m"]:  # what Python puts there while it looks for the module to run
        return "ergodrift.cli" in sys.orig_argv
    return bool(sys.argv) and os.path.basename(sys.argv[0]).partition(".")[0] in ("ergodrift", "ergodrift-script")


def quietly() -> None:
    """From here on Ctrl-C ends the process at once: nothing has been begun, or all is done."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # background jobs ignore it: let them
        signal.signal(signal.SIGINT, _end)


def as_usual() -> None:
    """From here on Ctrl-C is a `KeyboardInterrupt` again, where `quietly` had changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = _once_more


def _once_more(ignored: sys.UnraisableHookArgs) -> None:
    """A Ctrl-C that came while a library was tidying up, where Python ignores exceptions, comes a moment later."""
    if ignored.exc_type is KeyboardInterrupt:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def _end(*_: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)


if is_command():
    quietly()
