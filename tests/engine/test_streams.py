"""Samples that arrive in chunks: the numbers of a series, whatever the chunks; faults, ends and checkpoints."""

import io
import itertools
import os
import re
import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from ergodrift._core import progress
from ergodrift.engine import checkpoint, drive, feed, loop

RNG = np.random.default_rng(0)
ROWS = 3000
DATA = {"a": RNG.normal(size=(ROWS, 3)), "b": RNG.normal(size=ROWS), "n": RNG.integers(0, 5, ROWS)}
PROBLEM = ed.Problem(
    lambda x, xi: (xi["a"] @ x - xi["b"]) ** 2 + jnp.where(xi["n"] > 2, x[0], 0),
    lambda x, xi: x[:2] * xi["b"] - 0.1,
    ed.Ball(2.0),
)
X0 = np.zeros(3)
FIELDS = ("rounds", "x", "x_mean", "queue", "loss_sum", "constraint_sum", "solution")


def part(data, first, last):
    return jax.tree.map(lambda leaf: leaf[first:last], data)


def cut(data, places):
    """Chunks of a pytree of arrays, cut at these places."""
    ends = [0, *sorted(places), len(jax.tree.leaves(data)[0])]
    return [part(data, *ends) for ends in itertools.pairwise(ends)]


def same(one, other):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.fixture(scope="module")
def series():
    return {
        name: ed.run(algorithm, PROBLEM, ed.SeriesSource(DATA), x0=X0, seeds=2)
        for name, algorithm in {"edpp": ed.edpp(2.0), "mdpp": ed.mdpp(), "sdpp": ed.sdpp()}.items()
    }


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, ROWS), max_size=40), st.sampled_from([64, 1000, 65_536]))
def test_numbers_are_those_of_the_series_bit_for_bit_whatever_the_chunks(series, places, rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "ROOMS", (rows,))  # windows shorter than the stream too
        found = ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(cut(DATA, places)), x0=X0, seeds=2, num_samples=ROWS)
    same(found, series["edpp"])
    np.testing.assert_array_equal(found.samples, series["edpp"].samples)


@pytest.mark.parametrize("name", ["mdpp", "sdpp"])
def test_other_algorithms_too(series, name, monkeypatch):
    monkeypatch.setattr(feed, "ROOMS", (500,))
    algorithm = {"mdpp": ed.mdpp(), "sdpp": ed.sdpp()}[name]
    same(
        ed.run(algorithm, PROBLEM, ed.StreamSource(cut(DATA, [7, 700])), x0=X0, seeds=2, num_samples=ROWS), series[name]
    )


@pytest.mark.parametrize("margin", [None, 0.05])
def test_tall_samples_and_margins_are_kept_as_in_a_series(monkeypatch, margin):
    """Samples (n, d) with a small d lie on their side on the device; limits of linear models carry the margin."""
    monkeypatch.setattr(feed, "ROOMS", (100,))
    tall = {"a": RNG.normal(size=(300, 40, 2)), "b": RNG.normal(size=(300, 40))}
    problem = ed.Problem(
        lambda x, xi: jnp.mean((xi["a"] @ x - xi["b"]) ** 2), lambda x, xi: x[:1] + jnp.mean(xi["b"]), ed.Ball(1.0)
    )

    def run(source):
        return ed.run(ed.sdpp(), problem, source, x0=np.zeros(2), margin=margin, num_samples=300)

    same(run(ed.StreamSource(cut(tall, [50]))), run(ed.SeriesSource(tall)))


def test_records_of_a_stream_without_an_end_are_thinned(series):
    found = ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(cut(DATA, [10])), x0=X0, seeds=2, record=20)
    np.testing.assert_array_equal(found.solution, series["edpp"].solution)
    assert 20 <= len(found.samples) <= 41
    assert found.samples[-1] == ROWS
    assert len(set(np.diff(found.samples[:-1]))) == 1  # evenly spaced, but for the end
    again = ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0, seeds=2, record=found.samples)
    same(found, again)


def test_chosen_records_and_fewer_samples():
    source = ed.StreamSource(cut(DATA, [10]))
    found = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, record=[0, 100, 5000])
    assert found.samples.tolist() == [0, 100, ROWS]
    assert ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, num_samples=50).samples[-1] == 50


KINDS = {
    "generator": lambda: (chunk for chunk in cut(DATA, [5, 99])),
    "function": lambda: lambda: iter(cut(DATA, [5, 99])),
    "list": lambda: cut(DATA, [5, 99]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_iterable_of_chunks(series, kind):
    same(
        ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(KINDS[kind]()), x0=X0, seeds=2, num_samples=ROWS), series["edpp"]
    )


def test_tables_of_pandas_and_pyarrow_and_files(series, tmp_path):
    pandas, parquet, csv = map(pytest.importorskip, ("pandas", "pyarrow.parquet", "pyarrow.csv"))
    arrow = pytest.importorskip("pyarrow")
    flat = pandas.DataFrame({"a": DATA["a"][:, 0], "b": DATA["b"]})
    flat = (flat * 1024).round() / 1024  # few decimals: pandas 2 reads many of them to nearly all digits
    problem = ed.Problem(lambda x, xi: (xi["a"] * x[0] - xi["b"]) ** 2, lambda x, xi: x[:1] - 0.01, ed.Ball(2.0))

    def run(source):
        return ed.run(ed.sdpp(), problem, source, x0=np.zeros(1), num_samples=ROWS)

    wanted = run(ed.SeriesSource(flat))
    table = arrow.Table.from_pandas(flat)
    (tmp_path / "parts").mkdir()
    parquet.write_table(table[:1000], tmp_path / "parts" / "0.parquet")
    parquet.write_table(table[1000:], tmp_path / "parts" / "1.parquet")
    csv.write_csv(table, tmp_path / "all.csv")
    pieces = pandas.read_csv(tmp_path / "all.csv", chunksize=700)
    sources = [
        ed.StreamSource([flat[:10], flat[10:]]),
        ed.StreamSource(table),
        ed.StreamSource(table.to_batches(max_chunksize=77)),
        ed.StreamSource.read(tmp_path / "parts", rows=64),
        ed.StreamSource.read(tmp_path / "all.csv", columns=["a", "b"]),
        ed.StreamSource(pieces),
    ]
    for source in sources:
        same(run(source), wanted)
    pieces.close()
    with pytest.raises(FileNotFoundError, match="there is no"):
        ed.StreamSource.read(tmp_path / "nothing")
    (tmp_path / "parts" / "2.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"files of one kind.*csv and parquet"):
        ed.StreamSource.read(tmp_path / "parts")


# What can be wrong with chunks


def with_fault(fault, at=2):
    chunks = cut(DATA, [1000, 2000])
    chunks[at] = fault(chunks[at])
    return chunks


def spoiled(chunk):
    b = chunk["b"].copy()
    b[17] = np.nan
    return {**chunk, "b": b}


FAULTS = {
    r"chunk 2: \['b'\] holds nan at row 17, sample 2,017": spoiled,
    r"chunk 2: rows of \['a'\] are float64 of shape \(2,\), those before float64 of shape \(3,\)": lambda chunk: {
        **chunk,
        "a": chunk["a"][:, :2],
    },
    r"chunk 2: rows of \['n'\] are float64 of shape \(\), those before int64": lambda c: {**c, "n": c["n"] * 1.0},
    r"chunk 2 holds \['a'\], \['b'\], chunks before held \['a'\], \['b'\], \['n'\]": lambda c: {
        "a": c["a"],
        "b": c["b"],
    },
    r"chunk 2: arrays differ along their leading axis: .*\['b'\] has 3 rows": lambda c: {**c, "b": c["b"][:3]},
    r"chunk 2: \['b'\].*text|chunk 2: \['b'\] holds <U1": lambda c: {**c, "b": np.full(1000, "x")},
}


@pytest.mark.parametrize("message", FAULTS)
def test_bad_chunks_are_named_and_what_came_before_is_kept(message, tmp_path):
    source = ed.StreamSource(lambda: iter(with_fault(FAULTS[message])))
    path = tmp_path / "run.npz"
    with pytest.raises(ed.StreamError, match=message) as caught:
        ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, num_samples=ROWS, checkpoint=path)
    kept = caught.value.result
    wanted = ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0, num_samples=2000)
    np.testing.assert_array_equal(kept.solution, wanted.solution)
    assert kept.samples[-1] == 2000
    # Mended, the stream goes on from the checkpoint, to the numbers of a run without a fault.
    mended = ed.run(
        ed.edpp(2.0), PROBLEM, ed.StreamSource(cut(DATA, [1000, 2000])), x0=X0, num_samples=ROWS, checkpoint=path
    )
    same(mended, ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0))


def test_an_iterator_that_raises_leaves_a_result():
    def broken():
        yield from cut(DATA, [700])[:1]
        raise ConnectionError("the queue is gone")

    with pytest.raises(ed.StreamError, match=r"chunk 1 \(after 700 samples\).*ConnectionError: the queue") as caught:
        ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(broken()), x0=X0)
    assert caught.value.result.samples[-1] == 700
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_stream_that_ends_early_warns_and_leaves_a_result():
    with pytest.warns(UserWarning, match="ended after 3,000 of 5,000 samples"):
        found = ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource([DATA]), x0=X0, num_samples=5000)
    assert found.samples[-1] == ROWS
    np.testing.assert_array_equal(found.solution, ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0).solution)


WRONG = [
    (np.zeros((4, 2)), TypeError, r"got one ndarray.*\[data\]"),
    (DATA, TypeError, "got one dict"),
    ("folder", TypeError, r"StreamSource\.read"),
    (3, TypeError, "got int"),
    ([], ed.StreamError, "the stream is empty"),
    ([np.zeros((0, 2))], ed.StreamError, "the stream is empty"),
    ([np.float64(2.0)], ed.StreamError, "chunk 0: data is one number"),
    (lambda: 3, TypeError, r"chunks\(\) must return an iterable"),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_what_is_no_stream_is_said(case):
    chunks, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(chunks), x0=X0)


def test_a_stream_is_not_kept():
    source = ed.StreamSource([DATA])
    result = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0)
    for ask in (
        lambda: source.paths(1, 10),
        lambda: ed.metrics.optimality_gap(result, PROBLEM, source, None),
        lambda: source.loss_law,
    ):
        with pytest.raises(ValueError, match="read once and not kept"):
            ask()
    with pytest.raises(ValueError, match="paths cannot be replayed"):
        ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, paths=np.arange(5))
    with pytest.raises(ValueError, match="several runs over the same samples"):
        ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, margin="auto")
    with pytest.raises(ValueError, match="remembers every state"):
        ed.run(ed.rdpp(), PROBLEM, source, x0=X0)


def test_an_iterator_is_read_once_and_a_look_takes_nothing_away():
    source = ed.StreamSource(iter(cut(DATA, [10, 500])))
    np.testing.assert_array_equal(source.head(20).data["b"], DATA["b"][:20])
    assert source.example["b"] == DATA["b"][0]
    found = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0)
    np.testing.assert_array_equal(found.solution, ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0).solution)
    with pytest.raises(ValueError, match="an iterator, and has been read already"):
        ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0)


# Checkpoints


def interrupted_after(count, path, monkeypatch, **options):
    """A run on a stream that is interrupted after `count` saves."""
    monkeypatch.setattr(checkpoint, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(feed, "ROOMS", (500,))
    saves, save = itertools.count(1), checkpoint.Checkpoint.save

    def stopping(self, state, **more):
        save(self, state, **more)
        if next(saves) == count:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "save", stopping)
        with pytest.raises(KeyboardInterrupt):
            ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(cut(DATA, [33, 1234])), x0=X0, checkpoint=path, **options)


@pytest.mark.parametrize("options", [{}, {"num_samples": ROWS, "seeds": 2}])
def test_an_interrupted_run_goes_on_where_it_was(tmp_path, monkeypatch, options):
    path = tmp_path / "run.npz"
    interrupted_after(3, path, monkeypatch, **options)
    rest = ed.StreamSource(lambda: iter(cut(DATA, [1, 2, 2000])))  # chunks may come otherwise
    found = ed.run(ed.mdpp(), PROBLEM, rest, x0=X0, checkpoint=path, **options)
    same(found, ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(cut(DATA, [33, 1234])), x0=X0, **options))


def test_a_resumed_run_knows_its_stream_again(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    interrupted_after(3, path, monkeypatch)
    other = {**DATA, "b": DATA["b"] + 1e-12}
    with pytest.raises(ValueError, match="chunks are others than those the checkpoint was made with"):
        ed.run(ed.mdpp(), PROBLEM, ed.StreamSource([other]), x0=X0, checkpoint=path)
    with pytest.raises(ed.StreamError, match="the stream ends after 100 samples"):
        ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(cut(DATA, [100])[:1]), x0=X0, checkpoint=path)


def test_an_iterator_says_what_it_needs_to_be_resumed(tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    interrupted_after(3, path, monkeypatch)
    with pytest.raises(
        ValueError, match=r"this run has learned from [\d,]+: pass StreamSource\(rest, first="
    ) as caught:
        ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(iter([DATA])), x0=X0, checkpoint=path)
    begin = int(str(caught.value).split("first=")[1].split(")")[0])
    assert 0 < begin < ROWS
    rest = iter(cut(DATA, [begin])[1:])
    found = ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(rest, first=begin), x0=X0, checkpoint=path)
    same(found, ed.run(ed.mdpp(), PROBLEM, ed.StreamSource([DATA]), x0=X0))
    with pytest.raises(ValueError, match="begins with sample 10, and this run has learned from 0"):
        ed.run(ed.mdpp(), PROBLEM, ed.StreamSource(iter([DATA]), first=10), x0=X0)


def test_a_stream_that_has_grown_is_learned_from_where_the_run_ended(tmp_path):
    path = tmp_path / "run.npz"
    ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(cut(DATA, [1000])[:1]), x0=X0, checkpoint=path)
    found = ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource([DATA]), x0=X0, checkpoint=path)
    same(found, ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource([DATA]), x0=X0))


def test_nan_that_arises_is_located(monkeypatch):
    monkeypatch.setattr(feed, "ROOMS", (500,))
    problem = ed.Problem(
        lambda x, xi: jnp.sum(x * xi["b"]) + jnp.where(xi["b"] == DATA["b"][1777], jnp.nan, 0.0),
        lambda x, xi: x[:1] - 0.1,
        ed.Ball(2.0),
    )
    for source in (ed.SeriesSource(DATA), ed.StreamSource(cut(DATA, [900]))):
        with pytest.raises(ed.NonFiniteError, match=r"loss.*not finite at sample 1778"):
            ed.run(ed.edpp(2.0), problem, source, x0=X0)


def test_a_solution_that_loses_to_x0_is_told(monkeypatch):
    monkeypatch.setattr("ergodrift.engine.run.LONG", 0.0)
    problem = ed.Problem(lambda x, xi: 1e3 * jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 9.0, ed.Ball(1e3))
    chunks = [RNG.normal(size=(300, 2)), RNG.normal(size=(300, 2))]
    with pytest.warns(UserWarning, match="worse than x0"):
        ed.run(ed.dpp(), problem, ed.StreamSource(chunks), x0=np.zeros(2))


def test_few_compilations_whatever_the_lengths():
    code = """
        import numpy as np, ergodrift as ed, jax.numpy as jnp
        problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
        rng = np.random.default_rng(0)
        lengths = [1, 7, 30_000, 2, 70_000, 64, 12_345]
        chunks = [rng.normal(size=(length, 2)) for length in lengths]
        ed.run(ed.sdpp(), problem, ed.StreamSource(chunks), x0=np.zeros(2))
    """
    loud = os.environ | {"JAX_LOG_COMPILES": "1"}
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, env=loud
    ).stderr
    assert said.count("Finished XLA compilation of jit(advance)") == 1


@pytest.mark.slow
def test_auto_looks_at_the_head_of_a_stream():
    source = ed.StreamSource(iter(cut(DATA, [100])))
    algorithm = ed.auto(PROBLEM, source, X0)
    assert algorithm.name == "SDPP"
    assert algorithm.reason
    found = ed.run(algorithm, PROBLEM, source, x0=X0)
    wanted = ed.run(ed.auto(PROBLEM, ed.SeriesSource(DATA), X0), PROBLEM, ed.SeriesSource(DATA), x0=X0)
    np.testing.assert_array_equal(found.solution, wanted.solution)


def test_at_most_three_loops_for_streams_of_all_lengths(monkeypatch):
    monkeypatch.setattr("ergodrift.engine.run.LONG", np.inf)  # one sample makes no good solution
    problem = ed.Problem(PROBLEM.loss, PROBLEM.constraints, ed.Ball(3.0))
    compiled: Any = loop.advance_on(tuple(jax.devices()[:1]))
    before = compiled._cache_size()
    for count in (1, 2, 63, 64, 65, 700, 2049, ROWS):
        whole = part(DATA, 0, count)
        found = ed.run(ed.edpp(2.0), problem, ed.StreamSource(cut(whole, [1, count // 3])), x0=X0, record=10)
        assert found.samples[-1] == count
    assert compiled._cache_size() - before <= 3


# While the loop runs


def test_the_next_rows_are_read_while_the_loop_runs(monkeypatch):
    """Rows are asked for while what was computed of those before is not there yet, however small the loop looks."""

    def slow(x, xi):
        return jnp.sum(x) * xi["b"] + 0.0 * jax.lax.fori_loop(0, 30_000, lambda i, s: jnp.sin(s), xi["b"])

    monkeypatch.setattr(feed, "ROOMS", (64,))
    call, calls, ready = drive.loop.advance_on, [], []

    def watched(devices):
        advance = call(devices)

        def keep(*told):
            calls.append(advance(*told))
            return calls[-1]

        return keep

    def chunks():
        for chunk in cut(part(DATA, 0, 640), range(64, 640, 64)):
            if calls:
                ready.append(calls[-1].position.is_ready())
            yield chunk

    monkeypatch.setattr(drive.loop, "advance_on", watched)
    problem = ed.Problem(slow, lambda x, xi: x[:1] - 0.1, ed.Ball(2.0))
    ed.run(ed.edpp(2.0), problem, ed.StreamSource(chunks), x0=X0, record=2)
    assert len(ready) >= 7
    assert ready.count(False) >= 5


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("options", "shown"), [({}, r"EDPP-t 3,000 samples, [\d,]+ a second"), ({"num_samples": ROWS}, "100%")]
)
def test_progress_is_shown_as_on_a_series(monkeypatch, options, shown):
    terminal = Terminal()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(cut(DATA, [9])), x0=X0, **options)
    assert re.search(shown, terminal.getvalue())


# Others who look at streams


def test_arrays_may_be_filled_again_by_who_makes_the_chunks(series):
    def refilled():
        chunk = part(DATA, 0, 100)
        chunk = jax.tree.map(np.empty_like, chunk)
        for first in range(0, ROWS, 100):
            for name, column in chunk.items():
                column[...] = DATA[name][first : first + 100]
            yield chunk

    source = ed.StreamSource(refilled())
    np.testing.assert_array_equal(source.head(950).data["b"], DATA["b"][:950])
    same(ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, seeds=2, num_samples=ROWS), series["edpp"])


def test_chunks_without_rows_say_nothing(series):
    chunks = [[], *cut(DATA, [0, 1, 2, 2]), {"a": np.zeros((0, 9)), "b": np.zeros(0, "U1")}]
    found = ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(chunks), x0=X0, seeds=2, num_samples=ROWS)
    same(found, series["edpp"])


def test_what_lies_behind_the_samples_asked_for_is_not_missed():
    source = ed.StreamSource(lambda: iter(with_fault(spoiled)))
    assert ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0, num_samples=1900).samples[-1] == 1900


def test_a_stream_is_diagnosed_and_certified_by_its_first_samples():
    x = np.full(3, 0.1)
    source, series = ed.StreamSource(iter(cut(DATA, [100]))), ed.SeriesSource(DATA)
    assert ed.diagnose(source).tau_mix == ed.diagnose(series).tau_mix
    assert ed.diagnose(source, PROBLEM, x, num_samples=1000).num_samples == 1000
    fresh = ed.StreamSource(cut(DATA, [100]))
    certificate = ed.certify(PROBLEM, x, fresh, num_samples=2000)
    np.testing.assert_array_equal(certificate.upper, ed.certify(PROBLEM, x, series, num_samples=2000).upper)
    with pytest.raises(ValueError, match="num_samples must be given: how many samples of the stream"):
        ed.certify(PROBLEM, x, fresh)
    result = ed.run(ed.edpp(2.0), PROBLEM, source, x0=X0)
    with pytest.raises(ValueError, match="the stream of the run was read and not kept: pass held-out samples"):
        result.certify()


def test_what_would_need_a_stream_twice_is_refused():
    source = ed.StreamSource([DATA])
    with pytest.raises(ValueError, match="losses is a stream, and a Zip keeps its parts"):
        ed.Zip(source, ed.SeriesSource(DATA))
    with pytest.raises(ValueError, match="not by a sweep under vmap or jit"):
        jax.vmap(lambda tau: ed.run(ed.edpp(tau), PROBLEM, source, x0=X0).solution)(jnp.ones(2))


def test_loaders_of_torch(series):
    torch = pytest.importorskip("torch")
    data = pytest.importorskip("torch.utils.data")
    columns = {name: torch.from_numpy(column) for name, column in DATA.items()}
    rows = [{name: column[i] for name, column in columns.items()} for i in range(ROWS)]
    loader = data.DataLoader(rows, batch_size=700)
    same(ed.run(ed.edpp(2.0), PROBLEM, ed.StreamSource(loader), x0=X0, seeds=2, num_samples=ROWS), series["edpp"])
    pairs = ed.Problem(lambda x, xi: (xi[0] @ x - xi[1]) ** 2, lambda x, xi: x[:1] * xi[1] - 0.1, ed.Ball(2.0))
    loader = data.DataLoader(data.TensorDataset(columns["a"], columns["b"]), batch_size=999)
    found, wanted = (
        ed.run(ed.edpp(2.0), pairs, source, x0=X0, num_samples=ROWS)
        for source in (ed.StreamSource(loader), ed.SeriesSource((DATA["a"], DATA["b"])))
    )
    same(found, wanted)


KILLED = """
    import os, sys, numpy as np, jax, jax.numpy as jnp, ergodrift as ed
    from ergodrift.engine import checkpoint, feed
    jax.config.update("jax_enable_x64", True)
    checkpoint.SAVE_SECONDS, feed.ROOMS = 0.0, (300,)
    path, kind, die = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rows = np.random.default_rng(0).normal(size=(3000, 2))

    def chunks(first=0):
        for begin in range(first, 3000, 70):
            if begin == die:
                os.kill(os.getpid(), 9)
            yield rows[begin : begin + 70]

    def run(source):
        x0 = np.zeros(2)
        return ed.run(ed.mdpp(), problem, source, x0=x0, num_samples=3000, checkpoint=None if path == "-" else path)

    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.01, ed.Ball(2.0))
    try:
        found = run(ed.StreamSource(chunks if kind == "function" else chunks()))
    except ValueError as error:
        first = int(str(error).split("first=")[1].split(")")[0])
        print(first)
        found = run(ed.StreamSource(chunks(first), first=first))
    print(np.asarray(found.x_mean).tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "iterator"])
def test_killed_it_goes_on_where_it_was(tmp_path, kind):
    def process(path, die, check=True):
        command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path), kind, str(die)]
        return subprocess.run(command, check=check, capture_output=True, text=True)

    path = tmp_path / "run.npz"
    assert process(path, 2100, check=False).returncode == -9
    assert path.exists()
    *told, found = process(path, -1).stdout.split()
    assert found == process("-", -1).stdout.split()[-1]
    if kind == "iterator":  # it was asked for what goes on, and not for all
        assert 0 < int(told[0]) < 3000


def test_a_look_at_the_end_sees_more_than_the_last_chunk():
    """By its last row alone x0 would be better than any point: a warning would say so, and warnings are errors."""
    a = np.random.default_rng(0).normal(size=(500, 2))
    data = {"a": a, "b": a @ [1.0, 0.5]}
    data["b"][-1] = 0.0
    problem = ed.Problem(lambda x, xi: (xi["a"] @ x - xi["b"]) ** 2, lambda x, xi: x[:1] - 2.0, ed.Ball(2.0))
    ed.run(ed.sdpp(), problem, ed.StreamSource(cut(data, range(1, 500))), x0=np.zeros(2))
