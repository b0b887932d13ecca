"""Runs on several hosts: two processes on the loopback, each with two devices, give the numbers of one."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest

import ergodrift as ed
from ergodrift.engine.hosts import Share, share

pytestmark = [pytest.mark.slow, pytest.mark.x64("processes of their own: once is enough")]

CODE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
number, count, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=number)
import ergodrift as ed

source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]]), np.eye(2))
problem = ed.Problem(lambda x, xi: jnp.sum(jax.nn.softplus(xi - x)), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
told = {"x0": np.zeros(2), "num_samples": 500, "record": 3}
found = [
    ed.run(ed.edpp(4), problem, source, seeds=[7, 1, 5, 2], **told),
    ed.run(ed.mdpp(), problem, source, seeds=4, paths=source.paths(4, 500), record=3, x0=np.zeros(2)),
    ed.run(ed.edpp(4), problem, source, seeds=3, **told),  # cannot be shared out: everyone runs them all
    ed.run(ed.edpp(4), problem, source, seeds=4, checkpoint=out + ".checkpoint", margin=0.1, **told),
]
bad = ed.Problem(lambda x, xi: jnp.sum(xi - x), lambda x, xi: jnp.log(-jnp.abs(x[:1])), ed.Ball(2.0))
try:
    ed.run(ed.edpp(4), bad, source, seeds=2, **told)
    said = ""
except Exception as error:
    said = type(error).__name__
told = [[r.seeds.tolist(), np.asarray(r.x).tolist(), np.asarray(r.solution).tolist(), r.paths is None] for r in found]
with open(out, "w") as file:
    json.dump([len(jax.devices()), said, [r.setting.seeds.tolist() for r in found], told], file)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processes(count, folder):
    """What each of so many processes has found."""
    port = str(free_port())
    files = [folder / f"{count}-{number}" for number in range(count)]
    commands = [[sys.executable, "-c", CODE, str(n), str(count), port, str(file)] for n, file in enumerate(files)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    return [json.loads(file.read_text()) for file in files]


def test_two_processes_share_the_seeds_and_both_get_all_results(tmp_path):
    (alone,) = processes(1, tmp_path)
    first, second = processes(2, tmp_path)
    assert first == second
    assert [alone[0], first[0]] == [2, 4]  # devices of all processes
    assert alone[1:3] == first[1:3]
    assert first[1] == "NonFiniteError"
    for (seeds, x, solution, none), (seeds_, x_, solution_, none_) in zip(alone[3], first[3], strict=True):
        assert (seeds, none) == (seeds_, none_)
        np.testing.assert_allclose(x, x_, rtol=0, atol=1e-12)
        np.testing.assert_allclose(solution, solution_, rtol=0, atol=1e-12)


def test_shares_are_rows_of_what_is_given_by_seed():
    assert share(4) is None  # in a process of its own
    source = ed.IIDSource(np.arange(3.0))
    part = Share(1, [7, 1, 5, 2], 2, 4)
    assert part.seeds == [5, 2]
    assert share(part.seeds) is None
    paths, levels = np.arange(12).reshape(4, 3) % 3, np.arange(8).reshape(4, 2)
    np.testing.assert_array_equal(part.paths(source, paths.tolist()), paths[2:])
    np.testing.assert_array_equal(part.paths(source, paths[0]), paths[0])
    np.testing.assert_array_equal(part.rows(levels, 2), levels[2:])
    assert part.rows([1, 2], 2) == [1, 2]
    assert part.file("run.npz") == "run.npz.1"


SPLIT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
jax.config.update("jax_enable_x64", True)
import ergodrift as ed
from ergodrift.engine import drive, split

split.WORTH = 0
seen = []
before = drive.Drive.__init__
drive.Drive.__init__ = lambda self, *told: (before(self, *told), seen.append((len(self.devices), self.axis)))[0]
rng = np.random.default_rng(3)
data = {"a": rng.normal(size=(1003, 3)), "y": rng.normal(size=1003)}
problem = ed.Problem(lambda x, xi: (xi["a"] @ x - xi["y"]) ** 2, lambda x, xi: x[:1] * xi["y"] - 0.3, ed.Ball(2.0))
source = ed.SeriesSource(data, batch=12, epochs=3)  # the last batch of a pass is not full
found = [
    ed.run(algorithm, problem, source, x0=np.zeros(3), record=3, margin=margin)
    for algorithm, margin in [(ed.edpp(4), None), (ed.mdpp(), 0.1)]
]
print(json.dumps([seen, [[np.asarray(r.x).tolist(), np.asarray(r.constraint_sum).tolist()] for r in found]]))
"""


def test_a_batch_is_split_over_devices_for_one_seed():
    ends = []
    for devices in ("1", "3"):
        command = [sys.executable, "-c", SPLIT, devices]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ends.append(json.loads(done.stdout))
    assert [seen[0] for seen, _ in ends] == [[1, []], [3, ["rows"]]]
    for one, other in zip(ends[0][1], ends[1][1], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
