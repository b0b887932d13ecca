"""Machines for tests: each has its own network, processes, host name and disk, as Linux namespaces give them.

Every machine hangs on one switch and knows the others by address alone. `Machine.die` is SIGKILL for all it runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from pathlib import Path

SUBNET = "192.0.2."  # for documentation (RFC 5737): belongs to nobody
PRIVATE = ("/srv", "/tmp/ray", "/dev/shm")  # the disk, and what an engine would otherwise share
INIT = "trap '' CHLD; exec sleep infinity"  # children that end are reaped by the kernel, as an init would


def why_not() -> str | None:
    """Why this computer cannot make machines; None where it can."""
    missing = [tool for tool in ("ip", "unshare", "nsenter", "openssl") if shutil.which(tool) is None]
    if missing:
        return f"needs the commands {', '.join(missing)}"
    trial = "ip link add br0 type bridge && mount -t tmpfs tmpfs /srv"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", trial], capture_output=True)
    return f"namespaces are not allowed here: {tried.stderr.decode().strip()}" if tried.returncode else None


class Machine:
    """A computer at SUBNET + number; `disk` is its /srv and outlives its processes."""

    def __init__(self, number: int, disk: Path, switch: int) -> None:
        self.number, self.disk, self.switch = number, disk, switch
        self.address, self.name = f"{SUBNET}{number}", f"machine-{number}"
        self.environment = {"HOME": "/srv/home", "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        self.power: subprocess.Popen[bytes] | None = None
        self.init = 0
        self.running: list[subprocess.Popen[str]] = []
        (disk / "home").mkdir(parents=True, exist_ok=True)

    def boot(self) -> None:
        """Switch on: no process yet, the disk as it was left."""
        self.power = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "sh", "-c", INIT],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        children = Path(f"/proc/{self.power.pid}/task/{self.power.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        self.init = int(found[0])
        # The kernel clears away the network of processes that are gone in its own time, cable by cable.
        _do(f"nsenter -t {self.switch} -n ip link del port{self.number} 2>/dev/null || true")
        _do(f"ip link add port{self.number} netns {self.switch} type veth peer name eth0 netns {self.init}")
        _do(f"nsenter -t {self.switch} -n ip link set port{self.number} master br0 up")
        Path("/tmp/ray").mkdir(exist_ok=True)
        mounts = "; ".join(["mount --make-rprivate /", "mount -t proc proc /proc"] + [
            f"mount --bind {self.disk} {place}" if place == "/srv" else f"mount -t tmpfs tmpfs {place}"
            for place in PRIVATE
        ])  # fmt: skip
        self.run(
            f"set -e; {mounts}; hostname {self.name}; ip link set lo up; "
            f"ip addr add {self.address}/24 dev eth0; ip link set eth0 up"
        )

    def start(self, script: str, env: Mapping[str, str] | None = None, **options: object) -> subprocess.Popen[str]:
        """A shell script on this machine, running; its output is both streams together."""
        enter = ["nsenter", f"--target={self.init}", "--net", "--mount", "--pid", "--uts", "--ipc", "--wd=/"]
        settings = {**self.environment, **(env or {})}
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        process = subprocess.Popen([*enter, "bash", "-c", script], env=settings, text=True, **streams)  # type: ignore[call-overload]
        self.running.append(process)
        return process

    def run(self, script: str, env: Mapping[str, str] | None = None, timeout: float = 60, check: bool = True) -> str:
        """What a shell script prints on this machine; a failure is an error that shows it."""
        code, output = self.attempt(script, env, timeout)
        if check and code:
            raise RuntimeError(f"{self.name}: exit code {code}\n{script}\n{output}")
        return output

    def attempt(self, script: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> tuple[int, str]:
        """Exit code and output."""
        process = self.start(script, env)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            return 124, process.communicate()[0] + f"\nno end after {timeout} s"
        return process.returncode, output

    def die(self) -> None:
        """SIGKILL for every process of the machine at once; its network card goes with them."""
        if self.power and self.power.poll() is None:
            os.kill(self.init or self.power.pid, signal.SIGKILL)
            self.power.wait(10)
        for process in self.running:
            process.wait(10)
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                pipe.close()
        self.running = []


@contextlib.contextmanager
def machines(count: int, disks: Path) -> Generator[list[Machine]]:
    """`count` machines on one switch."""
    switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    made: list[Machine] = []
    try:
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{switch.pid}/ns/net") == own:
            time.sleep(0.01)
        _do(f"nsenter -t {switch.pid} -n sh -c 'ip link add br0 type bridge && ip link set br0 up'")
        for number in range(1, count + 1):
            made.append(Machine(number, disks / str(number), switch.pid))
            made[-1].boot()
        yield made
    finally:
        for machine in made:
            machine.die()
        switch.kill()
        switch.wait()


def _do(command: str) -> None:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
