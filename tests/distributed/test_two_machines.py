"""Two machines, TLS and a token: the commands of docs/howto/distributed.md as they stand there, and what they promise.

Machines are made of namespaces (see machines.py), so that addresses, certificates, processes and files are as on two
computers: a path under /srv is another file on each, and a machine that dies takes all its processes with it.
"""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
import machines

pytest.importorskip("ray", reason="needs Ray: pip install 'ergodrift[ray]'")
if reason := machines.why_not():
    pytest.skip(reason, allow_module_level=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.x64("walks equal their simulation to float64's digits"),
]

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "howto" / "distributed.md").read_text()
X0 = np.array([0.1234567, -0.7654321, 0.2718281])  # the guide's, whose bytes are looked for on the wire
SCP = """#!/bin/bash
cp -r "${@:1:$#-1}" "$DISKS/$(cut -d: -f1 <<< "${!#}" | cut -d. -f4)/home/$(cut -d: -f2 <<< "${!#}")"
"""  # `scp FILE... 192.0.2.N:PATH` between machines that have no ssh
SNIFF = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 2**27)  # SO_RCVBUFFORCE: nothing may be missed
wire.bind((sys.argv[1], 0))
with open(sys.argv[2], "wb", buffering=0) as file:
    print("ready", flush=True)
    while True:
        file.write(wire.recv(2**18))
"""
# Ray notices a dead machine when it misses so many questions in a row; by default that takes half a minute.
IMPATIENT = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}


LONG = 1500  # hops of a walk during which a machine dies
PATIENCE = 240  # seconds, for a computer that is busy with other things; all this takes far less on an idle one
CALL = """export RAY_NUM_REDIS_GET_RETRIES=1
export RAY_gcs_rpc_server_connect_timeout_s=3 RAY_gcs_server_request_timeout_seconds=5
timeout 200 python -c 'import ray; ray.init(address="192.0.2.1:6379"); print("let in")' 2>&1"""
OTHER_CA = """mkdir -p other && cd other && umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other \\
  -addext subjectAltName=IP:192.0.2.2,IP:127.0.0.1 -keyout key -out crt
export RAY_TLS_CA_CERT=$PWD/crt RAY_TLS_SERVER_CERT=$PWD/crt RAY_TLS_SERVER_KEY=$PWD/key"""
STRANGERS = {  # what they change of the settings, and how they are turned away
    "without a token": ("export RAY_AUTH_MODE=disabled", "InvalidAuthToken"),
    "with another token": ("export RAY_AUTH_TOKEN=$(openssl rand -hex 32)", "InvalidAuthToken"),
    "with another authority": (OTHER_CA, "CERTIFICATE_VERIFY_FAILED"),
    "without TLS": ("export RAY_USE_TLS=0", "Failed to connect to GCS"),
}


def blocks(machine):
    """The shell blocks of the guide that are for a machine, in order."""
    found = re.findall(r"```sh\n# on ([AB and]+)\n(.*?)```", GUIDE, re.DOTALL)
    return [text for where, text in found if machine in where]


ROWS_A, KEYS, HEAD, HUB = blocks("A")
ROWS_B, UNPACK, JOIN = blocks("B")


class Cluster:
    """Machines A and B with the guide's keys; what crosses the cable of B is kept in a file."""

    def __init__(self, a, b, folder):
        self.a, self.b, self.captured = a, b, folder / "captured"
        self.printed, self.hidden, self.callers = "", b"", {}
        (folder / "bin").mkdir()
        (folder / "bin" / "scp").write_text(SCP)
        (folder / "bin" / "scp").chmod(0o755)
        for machine in (a, b):
            path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{machine.environment['PATH']}"
            machine.environment |= {
                **IMPATIENT,
                "PATH": path,
                "DISKS": str(a.disk.parent),
                "PYTHONPATH": str(ROOT / "src"),
                "JAX_PLATFORMS": "cpu",
                # What one process compiles, the others find: that saves time, and no more is shared.
                "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                "RAY_USAGE_STATS_ENABLED": "0",
            }
        enter = ["nsenter", f"--target={a.switch}", "--net"]
        self.sniffer = subprocess.Popen(
            [*enter, sys.executable, "-c", SNIFF, f"port{b.number}", str(self.captured)], stdout=subprocess.PIPE
        )
        assert self.sniffer.stdout
        self.sniffer.stdout.readline()

    def start(self, machine, script):
        """A script that stays, with its output in a file beside the disk of its machine."""
        with (machine.disk.parent / f"{machine.name}.log").open("a") as log:
            machine.start(f"cd ~; {script}", stdout=log)

    def up(self, head=None, join=None):
        self.start(self.a, head or HEAD)
        wait = "until (echo > /dev/tcp/192.0.2.1/6379) 2> /dev/null; do sleep 0.1; done"
        self.b.run(wait, timeout=PATIENCE)
        self.start(self.b, join or JOIN)

    def wire(self):
        return self.captured.read_bytes()

    def close(self):
        self.sniffer.kill()
        self.sniffer.communicate()


def data_of(machine):
    files = [np.load(machine.disk / "site" / f"rows-{number}.npz") for number in range(2)]
    return [{name: file[name] for name in file.files} for file in files]


def simulated(a, b, num_samples, tokens=2):
    """`ed.run` on the data of both machines in one place, as the hub never sees them."""
    pooled = [data_of(machine)[number] for number in range(2) for machine in (a, b)]
    ring = np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1)
    chain = ed.MarkovChain.from_graph(ring)
    source = ed.MarkovSource(chain, jax.tree.map(lambda *rows: np.stack(rows), *pooled))
    problem = ed.Problem(
        lambda x, xi: jnp.mean(jnp.logaddexp(0.0, -xi["y"] * (xi["X"] @ x))),
        lambda x, xi: jnp.stack([jnp.mean(xi["X"] @ x) - 0.1]),
        ed.Ball(5.0),
    )
    algorithm = ed.edpp(chain.mixing_time())
    return ed.run(algorithm, problem, source, x0=X0, num_samples=num_samples, seeds=tokens)


def same(machine, expected):
    """The hub's file holds these points and queues."""
    found = np.load(machine.disk / "home" / "found.npz")
    # Both are sums in float64 of the same terms, in another order where XLA fuses otherwise.
    np.testing.assert_allclose(found["x"], np.asarray(expected.x), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["queue"], np.asarray(expected.queue), rtol=0, atol=1e-12)


@contextlib.contextmanager
def guided(folder, tls=True):
    """The cluster of the guide; without TLS, the same with that one setting changed."""
    folder.mkdir()
    with machines.machines(2, folder / "disks") as (a, b):
        cluster = Cluster(a, b, folder)
        try:
            for machine, script in [(a, ROWS_A), (b, ROWS_B), (a, KEYS), (b, UNPACK)]:
                machine.run(f"set -e; cd ~; {script}")
            if not tls:
                for machine in (a, b):
                    machine.run("echo export RAY_USE_TLS=0 >> ~/ray.env")
            cluster.up()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def secure(folder):
    """The cluster of the guide after its walk, while strangers knock at its door."""
    with guided(folder / "tls") as cluster:
        changes = {"nobody strange": "true", **{name: change for name, (change, _) in STRANGERS.items()}}
        cluster.printed = cluster.a.run(f"cd ~; {HUB}", timeout=PATIENCE)
        cluster.hidden = cluster.wire()  # before anybody speaks without TLS
        for name, change in changes.items():
            cluster.callers[name] = cluster.b.start(f"cd ~; . ~/ray.env; {change}\n{CALL}")
        yield cluster


def test_the_walk_of_the_guide_equals_the_simulation(secure):
    """Both machines have a /srv/site/rows-0.npz with rows of their own, so each agent ran where its data are."""
    same(secure.a, simulated(secure.a, secure.b, 1000))
    assert re.search(r"EDPP-t: 2 tokens, 1,000 hops each.* 0 held, 0 late", secure.printed)
    for agent in ("site-a/0", "site-b/0", "site-a/1", "site-b/1"):
        assert agent in secure.printed


def test_nothing_can_be_read_on_the_wire(secure, folder):
    """With TLS neither x, nor the token, nor a row; without it x and the token, so it looks. No row travels."""
    hidden = secure.hidden
    assert len(hidden) > 200_000  # 2,000 visits of two machines, half of them over the cable, at some hundred bytes
    with guided(folder / "plain", tls=False) as plain:
        plain.a.run(f"cd ~; {HUB.replace('num_samples=1000', 'num_samples=50')}", timeout=PATIENCE)
        readable = plain.wire()
        tokens = [(cluster.a.disk / "home/.ray/auth_token").read_bytes().strip() for cluster in (secure, plain)]
        rows = [row.tobytes() for cluster in (secure, plain) for row in data_of(cluster.b)[0]["X"][:20]]
    assert X0.tobytes() in readable
    assert tokens[1] in readable
    assert X0.tobytes() not in hidden
    assert tokens[0] not in hidden
    assert not [row for row in rows if row in readable or row in hidden]


def test_who_has_token_and_certificate_is_let_in(secure):
    output, _ = secure.callers["nobody strange"].communicate(timeout=PATIENCE)
    assert "let in" in output


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_refused(secure, stranger):
    output, _ = secure.callers[stranger].communicate(timeout=PATIENCE)
    assert "let in" not in output
    assert STRANGERS[stranger][1] in output
    assert secure.callers[stranger].returncode not in (0, 124), output


def test_a_machine_that_dies_and_comes_back_changes_nothing(secure):
    """Machine B is killed, all its processes at once, while tokens walk; it comes back, and the walk ends as if nothing
    had been."""
    a, b = secure.a, secure.b
    script = HUB.replace("num_samples=1000", f"num_samples={LONG}, checkpoint_every=100, patience={PATIENCE}")
    hub = a.start(f"cd ~; {script.replace('walk.npz', 'long.npz')}")
    kept = a.disk / "home" / "long.npz"
    deadline = time.monotonic() + PATIENCE
    while not kept.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    b.die()
    assert hub.poll() is None
    b.boot()
    secure.start(b, JOIN)
    output, _ = hub.communicate(timeout=PATIENCE)
    assert hub.returncode == 0, output
    assert re.search(rf"2 tokens, {LONG:,} hops each.* 0 held", output)
    restarts = {name: int(count) for name, count in re.findall(r"(site-\S+).* (\d+)$", output, re.MULTILINE)}
    assert restarts["site-a/0"] == restarts["site-a/1"] == 0
    assert restarts["site-b/0"] + restarts["site-b/1"] > 0
    same(a, simulated(a, b, LONG))
