import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift.engine.checkpoint import Checkpoint
from ergodrift.engine.run import NonFiniteError
from ergodrift.engine.start import LosesToStartWarning

drive_module = sys.modules["ergodrift.engine.drive"]

CHAIN = ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]])
POINTS = np.array([[1.0, 0.0], [0.0, 1.0]])
SOURCE = ed.MarkovSource(CHAIN, POINTS)


def squares(x, xi):
    return jnp.sum((x - xi) ** 2)


def halfspace(x, xi):
    return x[:1] - 0.25


PROBLEM = ed.Problem(squares, halfspace, ed.Ball(2.0))
GOOD = {"algorithm": ed.edpp(4.0), "problem": PROBLEM, "source": SOURCE, "x0": np.zeros(2), "num_samples": 100}


def run(**changes):
    return ed.run(**{**GOOD, **changes})


def test_shapes_of_a_result():
    result = run(seeds=3, record=10)
    assert result.samples.tolist() == list(range(10, 101, 10))
    assert result.x.shape == result.x_mean.shape == (3, 10, 2)
    assert result.queue.shape == result.constraint_sum.shape == (3, 10, 1)
    assert result.loss_sum.shape == result.rounds.shape == result.samples_used.shape == (3, 10)
    assert result.solution.shape == (3, 2)
    np.testing.assert_array_equal(result.solution, result.x_mean[:, -1])
    assert repr(result) == "Result(EDPP-t: 3 seeds, 10 records)"


def test_explicit_records_include_the_start():
    result = run(record=[0, 1, 7, 50])
    np.testing.assert_array_equal(result.x[0, 0], [0, 0])
    np.testing.assert_array_equal(result.x_mean[0, :2], [[0, 0], [0, 0]])
    assert result.rounds[0].tolist() == [0, 1, 7, 50]
    assert result.loss_sum[0, 0] == 0


def test_the_solution_is_the_mean_at_the_end_even_where_that_is_not_recorded():
    np.testing.assert_array_equal(run(record=[10]).solution, run(record=100).solution)


def test_more_records_than_samples_records_every_sample():
    assert run(num_samples=5, record=200).samples.tolist() == [1, 2, 3, 4, 5]


def test_a_series_runs_to_its_end_by_default():
    result = ed.run(ed.dpp(), PROBLEM, ed.SeriesSource(np.tile(POINTS, (30, 1))), x0=np.zeros(2), record=3)
    assert result.samples.tolist() == [20, 40, 60]


def test_seeds_by_number_do_not_depend_on_their_neighbours():
    together = run(seeds=[5, 9, 2])
    alone = run(seeds=[9])
    np.testing.assert_array_equal(together.seeds, [5, 9, 2])
    np.testing.assert_allclose(together.x[1], alone.x[0], rtol=1e-12)
    assert not np.array_equal(together.x[0], together.x[1])


def test_one_path_may_be_shared_by_all_seeds():
    result = run(seeds=2, paths=np.asarray(SOURCE.paths([7], 100))[0])
    np.testing.assert_allclose(result.x[0], run(seeds=[7]).x[0], rtol=1e-12)
    np.testing.assert_array_equal(result.x[0], result.x[1])


def test_mlmc_rounds_use_whole_windows():
    levels = np.array([[1, 3, 9, 2]])  # windows of 2, 8, 1 (above the cap) and 4 samples
    result = run(algorithm=ed.mdpp(cap=16), levels=levels, num_samples=20, record=[1, 2, 9, 10, 11, 14, 15, 20])
    assert result.rounds[0].tolist() == [0, 1, 1, 2, 3, 3, 4, 4]
    assert result.samples_used[0].tolist() == [0, 2, 2, 10, 11, 11, 15, 15]
    np.testing.assert_array_equal(result.x[0, -1], result.x[0, -2])  # levels are used up: the point is held


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_samples():
    code = """
    import resource, sys, numpy as np, jax.numpy as jnp, ergodrift as ed
    source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]]), np.eye(2, dtype=np.float32))
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.25, ed.Ball(2.0))
    peaks = []
    for count in (100_000, 20_000_000):
        ed.run(ed.edpp(4.0), problem, source, x0=np.zeros(2, np.float32), num_samples=count, record=10)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(peaks[1] - peaks[0])
    """
    grown = float(subprocess.check_output([sys.executable, "-c", textwrap.dedent(code)], text=True))
    assert grown < 20  # MiB; a stored path of 2 * 10^7 states would take 80


def test_float32_means_stay_right_over_many_rounds():
    """A float32 running mean without care stalls at 2^24 rounds; here x never leaves 0.1."""
    source = ed.IIDSource(np.zeros((1, 1), np.float32))
    problem = ed.Problem(lambda x, xi: jnp.sum(xi * x), lambda x, xi: x * 0 - 0.1, ed.Ball(1.0))
    result = ed.run(ed.dpp(), problem, source, x0=np.full(1, 0.1, np.float32), num_samples=2**25, record=1)
    assert result.x_mean.dtype == jnp.float32
    np.testing.assert_allclose(result.x_mean[0, 0], 0.1, rtol=3e-7)
    np.testing.assert_allclose(result.constraint_sum[0, 0], -0.1 * 2**25, rtol=3e-7)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"algorithm": "edpp"}, TypeError, "algorithm must be of type Algorithm, got str: 'edpp'"),
        ({"problem": None}, TypeError, "problem must be of type Problem"),
        ({"source": POINTS}, TypeError, "source must be of type Source, got ndarray"),
        ({"x0": np.array([3.0, 4.0])}, ValueError, "x0 lies outside Ball: got [3. 4.]; the nearest point is [1.2 1.6]"),
        ({"x0": np.array([0.0, np.nan])}, ValueError, "x0 holds nan at index (1,)"),
        ({"x0": np.array([0, 0])}, TypeError, "x0 must hold floating-point arrays"),
        ({"x0": {"w": np.zeros(2)}}, ValueError, "loss(x, xi) fails for shapes x {'w': (2,)}"),
        ({"x0": np.zeros(3)}, ValueError, "loss(x, xi) fails for shapes x (3,), xi (2,)"),
        ({"num_samples": 0}, ValueError, "num_samples must be between 1 and 2147483584, got 0"),
        ({"num_samples": 2.5}, TypeError, "num_samples must be a whole number, got 2.5"),
        ({"num_samples": None}, ValueError, "num_samples must be given: this source never ends"),
        ({"seeds": 0}, ValueError, "seeds must be between 1 and 2147483647, got 0"),
        ({"seeds": []}, ValueError, "seeds is empty"),
        ({"seeds": [1, 1]}, ValueError, "seeds must differ from each other, got [1, 1]"),
        ({"seeds": [-1]}, ValueError, "seeds must be between 0 and 4294967295, got -1"),
        ({"record": 0}, ValueError, "record must be between 1 and"),
        ({"record": [5, 3]}, ValueError, "record must ascend between 0 and num_samples=100, got 5 to 3"),
        ({"record": [5, 101]}, ValueError, "record must ascend between 0 and num_samples=100, got 5 to 101"),
        ({"record": [0.5]}, TypeError, "record must be a count or a list of sample counts, got [0.5]"),
        ({"paths": np.zeros((1, 99), int)}, ValueError, "paths too short: 99 samples per seed, but num_samples=100"),
        ({"paths": np.zeros((2, 100), int)}, ValueError, "paths must have shape (seeds, num_samples) = (1, 100)"),
        ({"paths": np.full((1, 100), 2)}, ValueError, "paths must hold states between 0 and 1, got 2 to 2"),
        ({"algorithm": ed.mdpp(), "levels": [6, 5]}, None, ""),
        ({"algorithm": ed.mdpp(cap=64), "levels": [6, 6]}, ValueError, "num_samples=100 is too short for the rounds"),
        ({"algorithm": ed.mdpp(), "levels": [0, 1]}, ValueError, "levels start at 1, got 0"),
        ({"algorithm": ed.mdpp(), "levels": [0.5]}, ValueError, "levels must be integers of shape (seeds, rounds)"),
        ({"algorithm": ed.pd(5, 4.0, 0.1)}, ValueError, "horizon=5.0 is too short for PD"),
        ({"checkpoint": "/nowhere/at/all.npz"}, ValueError, "checkpoint: the folder of /nowhere/at/all.npz"),
    ],
)
def test_bad_input_is_refused_by_name(changes, error, message):
    if error is None:  # the counterpart of the case below it, which must run
        run(**changes)
        return
    with pytest.raises(error, match=re.escape(message)):
        run(**changes)


def test_levels_are_refused_for_methods_that_draw_none():
    with pytest.raises(ValueError, match="levels"):
        run(levels=[1, 2])


def test_a_series_shorter_than_the_run_is_refused():
    with pytest.raises(ValueError, match="num_samples=100, but the series has only 60 samples"):
        run(source=ed.SeriesSource(np.tile(POINTS, (30, 1))))


def test_entropy_without_a_finite_diameter_is_refused_before_the_run():
    problem = ed.Problem(squares, halfspace, ed.EntropySimplex())
    with pytest.raises(ValueError, match="EntropySimplex has no finite diameter R"):
        run(problem=problem, x0=np.full(2, 0.5), algorithm=ed.adpp())


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("at", "num_samples"), [(1, 3000), (137, 3000), (2500, 3000)])
def test_a_nan_is_reported_with_sample_and_quantity(at, num_samples, seeds):
    data = np.ones(num_samples)
    data[at - 1] = -1.0
    problem = ed.Problem(lambda x, xi: x[0] ** 2 + jnp.sqrt(xi), lambda x, xi: x - 0.5, ed.Ball(1.0))
    with pytest.raises(NonFiniteError, match=f"EDPP-t, seed 0: loss not finite at sample {at} \\(after {at} rounds"):
        ed.run(ed.edpp(1.0), problem, ed.SeriesSource(data), x0=np.zeros(1), seeds=seeds)


def test_a_nan_gradient_is_told_from_a_nan_loss():
    # the usual trap: where() hides the value of sqrt at 0, but not its slope
    problem = ed.Problem(lambda x, xi: jnp.where(x[0] > 0, jnp.sqrt(x[0]), xi), lambda x, xi: x - 0.5, ed.Box(0.0, 1.0))
    with pytest.raises(NonFiniteError, match="EDPP-t, seed 0: loss_grad and x and queue not finite at sample 1 "):
        ed.run(ed.edpp(1.0), problem, ed.SeriesSource(np.ones(10)), x0=np.zeros(1))


def test_a_sum_that_overflows_is_told_from_a_quantity_that_does():
    source = ed.IIDSource(np.ones(1, np.float32))
    problem = ed.Problem(lambda x, xi: 1e37 * xi + 0 * x[0], lambda x, xi: x - 0.5, ed.Ball(1.0))
    with pytest.raises(NonFiniteError, match="a sum of losses or constraints not finite at sample 100 "):
        ed.run(ed.dpp(), problem, source, x0=np.zeros(1, np.float32), num_samples=100)


def test_a_progress_bar_shows_on_a_terminal_only(monkeypatch, capsys):
    monkeypatch.setattr(drive_module, "CALL_SECONDS", 1e-3)
    monkeypatch.setattr("ergodrift._core.progress.PATIENCE", 0.0)
    run(num_samples=20_000)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    run(num_samples=20_000)
    assert "EDPP-t" in (shown := capsys.readouterr().err)
    assert "20,000/20,000 samples" in shown
    assert shown.endswith("\r\033[K")  # nothing is left behind


def test_a_run_cut_into_many_calls_gives_the_same_numbers(monkeypatch):
    whole = run(seeds=2, num_samples=10_000, algorithm=ed.mdpp())
    monkeypatch.setattr(drive_module, "CALL_SECONDS", 1e-3)
    pieces = run(seeds=2, num_samples=10_000, algorithm=ed.mdpp())
    jax.tree.map(np.testing.assert_array_equal, whole, pieces)


KILLED = """
import sys, time, jax, numpy as np, jax.numpy as jnp, ergodrift as ed
from ergodrift.engine import checkpoint, drive
jax.config.update("jax_enable_x64", True)
checkpoint.SAVE_SECONDS, drive.CALL_SECONDS = 0.2, 0.05
source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]]), np.eye(2))
problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.25, ed.Ball(2.0))
arguments = dict(x0=np.zeros(2), num_samples=2_000_000, seeds=2, record=50)
if len(sys.argv) > 2:
    arguments["checkpoint"] = sys.argv[2]
result = ed.run(ed.mdpp(), problem, source, **arguments)
np.savez(sys.argv[1], *jax.tree.leaves(result))
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(tmp_path):
    """A process that is really killed, in the middle of its run; the continued run equals an undisturbed one."""
    script = [sys.executable, "-c", KILLED]
    saved = tmp_path / "run.npz"
    process = subprocess.Popen([*script, str(tmp_path / "never.npz"), str(saved)])
    deadline = time.monotonic() + 120
    while not saved.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "never.npz").exists()
    with np.load(saved) as file:
        names = set(file)
    assert {"format", "fingerprint"} < names
    subprocess.run([*script, str(tmp_path / "resumed.npz"), str(saved)], check=True)
    subprocess.run([*script, str(tmp_path / "whole.npz")], check=True)
    with np.load(tmp_path / "resumed.npz") as resumed, np.load(tmp_path / "whole.npz") as whole:
        assert set(resumed) == set(whole)
        for name in whole:
            np.testing.assert_array_equal(resumed[name], whole[name])


def test_a_finished_checkpoint_gives_the_result_at_once(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    first = run(checkpoint=path)
    monkeypatch.setattr(drive_module.loop, "advance_on", lambda devices: None)  # nothing is left to compute
    jax.tree.map(np.testing.assert_array_equal, first, run(checkpoint=path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize(
    "change", [{"algorithm": ed.edpp(5.0)}, {"seeds": [1]}, {"x0": np.full(2, 0.1)}, {"record": 5}]
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change):
    run(checkpoint=tmp_path / "run.npz")
    with pytest.raises(ValueError, match="belongs to a run with other arguments"):
        run(checkpoint=tmp_path / "run.npz", **change)


def test_a_checkpoint_of_another_domain_is_refused(tmp_path):
    run(checkpoint=tmp_path / "run.npz")
    problem = ed.Problem(squares, halfspace, ed.L1Ball(2.0))  # the same numbers, another class
    with pytest.raises(ValueError, match="belongs to a run with other arguments"):
        run(checkpoint=tmp_path / "run.npz", problem=problem)


def test_a_checkpoint_is_refused_where_it_cannot_be_kept(tmp_path):
    with pytest.raises(ValueError, match="checkpoint cannot be kept while run is traced"):
        jax.vmap(lambda tau: run(algorithm=ed.edpp(tau), checkpoint=tmp_path / "run.npz").solution)(jnp.ones(2))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "run.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint .*run\.npz cannot be used"):
        run(checkpoint=path)
    assert path.read_bytes() == content


def test_a_checkpoint_with_any_byte_changed_is_refused_or_read_as_it_was(tmp_path):
    """Bytes that nobody looks at, such as dates, may change; all others are noticed, whatever the reader says of it."""
    path = tmp_path / "state.npz"
    saved = {"a": np.arange(5.0), "b": np.ones((2, 3), np.int32)}
    Checkpoint(path, "mine").save(saved)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), []
    for place in rng.choice(len(whole), size=400, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = Checkpoint(path, "mine").restore(saved)
        except ValueError as error:
            refused.append(str(error))
        else:
            jax.tree.map(np.testing.assert_array_equal, found, saved)
    assert len(refused) > 200
    assert all("cannot be used" in reason for reason in refused)


LOUD = {"JAX_LOG_COMPILES": "1"}


@pytest.mark.slow
def test_seeds_spread_over_two_devices_give_the_same_numbers_and_compile_once(tmp_path):
    """In a process of its own: how many devices a CPU has is settled before JAX starts.

    To rounding: the loop over four seeds and that over two are programs of their own, and on some processors XLA takes
    other instructions for the softplus of one than of the other. Within a program, resuming is exact.
    """
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
        jax.config.update("jax_enable_x64", True)
        import ergodrift as ed
        from ergodrift.engine import checkpoint

        source = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]]), np.eye(2))
        problem = ed.Problem(lambda x, xi: jnp.sum(jax.nn.softplus(xi - x)), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
        run = lambda **options: ed.run(ed.mdpp(), problem, source, x0=np.zeros(2), num_samples=5000, seeds=4, **options)
        result = run()  # several calls into the loop, each from where the last one left its arrays
        checkpoint.SAVE_SECONDS, save = 0.0, checkpoint.Checkpoint.save

        def interrupted(self, state):
            save(self, state)
            raise KeyboardInterrupt

        checkpoint.Checkpoint.save = interrupted
        try:
            run(checkpoint=sys.argv[2] + ".checkpoint")
        except KeyboardInterrupt:
            checkpoint.Checkpoint.save = save
        kept = run(checkpoint=sys.argv[2] + ".checkpoint")
        np.testing.assert_array_equal(kept.x, result.x)
        np.save(sys.argv[2], np.concatenate([result.x, result.x_mean], axis=2))
    """
    for devices in ("1", "2"):
        command = [sys.executable, "-c", textwrap.dedent(code), devices, tmp_path / devices]
        said = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | LOUD).stderr
        assert said.count("Finished XLA compilation of jit(advance)") == 1
    np.testing.assert_allclose(np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy"), rtol=1e-13)


# A checkpoint answers for the problem it was made with, and for no other.


def problem_with(limit=0.25, target=POINTS, slope=2.0):
    """Written anew at every call: a limit in a closure, an array that is captured, a rule of its own."""

    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (square(x), x), lambda x, out: (slope * x * out,))
    return ed.Problem(
        lambda x, xi: jnp.sum(square(x - xi)) + 0 * jnp.sum(target[0] * x), lambda x, xi: x[:1] - limit, ed.Ball(2.0)
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limit": 0.1}, "constraints"),
        ({"target": POINTS + 1e-9}, "loss"),
        ({"slope": 1.9}, "loss"),
        ({"limit": 0.1, "slope": 1.9}, "loss and constraints"),
    ],
)
def test_a_checkpoint_refuses_functions_that_changed(tmp_path, change, named):
    path = tmp_path / "run.npz"
    first = run(checkpoint=path, problem=problem_with())
    again = run(checkpoint=path, problem=problem_with())  # other objects, the same functions
    np.testing.assert_array_equal(first.solution, again.solution)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"belongs to a run with other arguments: changed {named};"):
        run(checkpoint=path, problem=problem_with(**change))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"source": ed.MarkovSource(CHAIN, POINTS + 1e-9)}, "data"),
        ({"source": ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.3, 0.7]]), POINTS)}, "seeds or x0"),
        ({"algorithm": ed.edpp(5.0)}, "algorithm"),
        ({"average": "suffix"}, "algorithm"),
        ({"seeds": [1]}, "seeds or x0"),
        ({"num_samples": 101}, "records"),
        ({"problem": ed.Problem(squares, halfspace, ed.Ball(2.5))}, "domain and algorithm"),
    ],
)
def test_a_checkpoint_says_what_changed(tmp_path, change, named):
    run(checkpoint=tmp_path / "run.npz")
    with pytest.raises(ValueError, match=rf"belongs to a run with other arguments: changed {named}"):
        run(checkpoint=tmp_path / "run.npz", **change)


def test_a_checkpoint_refuses_a_schedule_that_changed(tmp_path):
    def algorithm(factor):
        class Mine(ed.Schedule):
            def weights(self, state, t, sizes):
                return state, ed.Weights(jnp.asarray(factor, float), jnp.asarray(t, float))

        return dataclasses.replace(ed.dpp(), schedule=Mine())

    run(checkpoint=tmp_path / "run.npz", algorithm=algorithm(1.0))
    with pytest.raises(ValueError, match="changed algorithm"):
        run(checkpoint=tmp_path / "run.npz", algorithm=algorithm(2.0))


AGAIN = """
import sys
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import ergodrift as ed
chain = ed.MarkovChain([[0.9, 0.1], [0.2, 0.8]])
source = ed.MarkovSource(chain, np.array([[1.0, 0.0], [0.0, 1.0]]))
LIMIT, table = float(sys.argv[2]), np.array([0.5, 0.25])
def loss(x, xi):
    return jnp.sum((x - xi) ** 2) + jnp.sum(jax.nn.softplus(x * table))
def constraints(x, xi):
    return jnp.stack([x[0] - LIMIT])
result = ed.run(ed.edpp(4.0), ed.Problem(loss, constraints, ed.Ball(2.0)), source, x0=np.zeros(2), num_samples=50,
                checkpoint=sys.argv[1])
print(np.asarray(result.solution).tobytes().hex())
"""


@pytest.mark.slow
def test_a_checkpoint_is_known_again_in_another_process(tmp_path):
    renamed = "\n\n# lines moved\n" + AGAIN.replace("loss", "objective").replace("table", "weights")
    answers = []
    for number, (text, limit) in enumerate([(AGAIN, "0.25"), (renamed, "0.25"), (AGAIN, "0.1")]):
        (tmp_path / "script.py").write_text(text)
        env = {**os.environ, "PYTHONHASHSEED": str(number + 1)}
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run.npz"), limit]
        answers.append(subprocess.run(command, capture_output=True, text=True, env=env))
    assert answers[0].returncode == answers[1].returncode == 0, answers[1].stderr
    assert answers[0].stdout == answers[1].stdout
    assert answers[2].returncode == 1
    assert "other arguments: changed constraints; use another file or delete it" in answers[2].stderr


def test_a_checkpoint_of_an_earlier_format_is_refused_in_plain_words(tmp_path):
    path = tmp_path / "run.npz"
    run(checkpoint=path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, "format": "ergodrift run v2", "fingerprint": "abc"})
    with pytest.raises(ValueError, match=r"'ergodrift run v2', of an earlier version.* finish the run with"):
        run(checkpoint=path)
    np.savez(path, **{**arrays, "jax": "0.1"})
    with pytest.raises(ValueError, match=r"changed constraints \(or look so to JAX .*, not 0.1\)"):
        run(checkpoint=path, problem=ed.Problem(squares, lambda x, xi: x[:1] - 0.3, ed.Ball(2.0)))
    run(checkpoint=path)  # the functions are traced alike, whatever did it


def test_a_run_that_loses_to_its_start_says_so(monkeypatch):
    """EDPP in the wrong units: the loss is in millionths and steps of order 1 carry x away from a good start."""
    data = np.random.default_rng(0).normal(size=(600, 1))
    problem = ed.Problem(lambda x, xi: 1e6 * jnp.sum((x - xi) ** 2), lambda x, xi: x - 50.0, ed.Ball(100.0))
    source, x0 = ed.SeriesSource(data), np.zeros(1)
    monkeypatch.setattr("ergodrift.engine.run.LONG", 0.0)
    with pytest.warns(LosesToStartWarning, match=r"seed 0: mean loss .* against"):
        ed.run(ed.dpp(), problem, source, x0=x0)
    ed.run(ed.auto(problem, source, x0), problem, source, x0=x0)  # warnings are errors here
