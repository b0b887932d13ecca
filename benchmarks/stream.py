"""Data as they come: `StreamSource` beside `SeriesSource`, `Learner` beside `run`, and memory where data do not fit.

Competitors take turns in one process and the best of several turns counts; a series is made before the clock starts,
chunks are made while it runs. The long run reads a folder of Parquet files that is written to a temporary folder and
removed again, also after Ctrl-C. Prints tables and writes bench-results/stream.json.

    python benchmarks/stream.py [--rows N] [--long-rows N] [--turns N] [--processor-time] [--parts PART ...]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import OUT, best_of, write

import ergodrift as ed
from ergodrift.engine import online
from ergodrift.engine.loop import advance_on

PARTS = ("throughput", "compilations", "learner", "memory")
COLUMNS = [f"x{i}" for i in range(20)]
CHUNK = 10_000
FILE_ROWS, GROUP_ROWS = 10_000_000, 1_000_000  # of the long run's Parquet files
ALGORITHMS = {"EDPP-t": ed.edpp(10.0), "SDPP": ed.sdpp(), "MDPP": ed.mdpp()}


def regression():
    """min E (a.x - b)^2 subject to E b x_1 <= 0.1 on a ball: rows are a vector and a number."""
    return ed.Problem(lambda x, xi: (xi["a"] @ x - xi["b"]) ** 2, lambda x, xi: x[:1] * xi["b"] - 0.1, ed.Ball(2.0))


def tracking():
    """min E |x - xi|^2 subject to E xi_1 + x_1 <= 0.1: rows are a table of 20 columns."""

    def loss(x, xi):
        return jnp.sum((x - jnp.stack([xi[name] for name in COLUMNS])) ** 2)

    return ed.Problem(loss, lambda x, xi: x[:1] + xi["x0"] - 0.1, ed.Ball(2.0))


def in_many_leaves():
    """The same as `regression`, its rows in five arrays."""

    def loss(x, xi):
        return (jnp.concatenate([xi["u"], xi["v"][0], xi["v"][1]]) @ x - xi["b"]) ** 2 * xi["weight"]

    return ed.Problem(loss, lambda x, xi: x[:1] * xi["b"] - 0.1, ed.Ball(2.0))


def rows_of(rows, dim, kind: Any = np.float32):
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(rows, dim)).astype(kind), "b": rng.normal(size=rows).astype(kind)}


def pieces(data, lengths):
    """A function that returns a generator of chunks of a tree of arrays; the lengths are gone through in a circle."""
    total = len(jax.tree.leaves(data)[0])

    def chunks():
        first = 0
        for length in itertools.cycle(lengths):
            yield jax.tree.map(lambda leaf, first=first, last=first + length: leaf[first:last], data)
            first += length
            if first >= total:
                return

    return chunks


def cases(rows, folder):
    """(what, problem, algorithm, data of a series, function that returns chunks, dimension, dtype, seeds)."""
    edpp, data = ALGORITHMS["EDPP-t"], rows_of(rows, 20)
    plain, table = regression(), tracking()
    for length in (1_000, CHUNK, 100_000):
        yield f"20 features, chunks of {length:,}", plain, edpp, data, pieces(data, [length]), 20, np.float32, 1
    yield "lengths from 1 to 40,000", plain, edpp, data, pieces(data, [1, 40_000, 7, 3_000, 12_345]), 20, np.float32, 1
    for name in ("SDPP", "MDPP"):
        yield name, plain, ALGORITHMS[name], data, pieces(data, [CHUNK]), 20, np.float32, 1
    yield "4 seeds", plain, edpp, data, pieces(data, [CHUNK]), 20, np.float32, 4
    for dim in (3, 200):
        other = rows_of(rows if dim == 3 else rows // 10, dim)
        yield f"{dim} features", plain, edpp, other, pieces(other, [CHUNK]), dim, np.float32, 1
    wide = rows_of(rows, 20, np.float64)
    yield "float64", plain, edpp, wide, pieces(wide, [CHUNK]), 20, np.float64, 1
    leaves = {"u": data["a"][:, :8], "v": (data["a"][:, 8:12], data["a"][:, 12:]), "b": data["b"]}
    leaves["weight"] = np.ones(rows, np.float32)
    yield "five arrays", in_many_leaves(), edpp, leaves, pieces(leaves, [CHUNK]), 20, np.float32, 1
    model = ed.LinearModel("logistic", ed.Ball(2.0))
    told = model.data(data["a"][:, None], np.sign(data["b"])[:, None], normals=data["a"][:, None], limits=[0.1])
    yield "LinearModel", model, edpp, told, pieces(told, [CHUNK]), 20, np.float32, 1
    frame = dict(zip(COLUMNS, np.ascontiguousarray(data["a"].T), strict=True))
    yield "20 columns, dicts of NumPy", table, edpp, frame, pieces(frame, [CHUNK]), 20, np.float32, 1
    yield from tables(table, edpp, frame, folder)
    yield from loaders(edpp, data)


def tables(problem, algorithm, columns, folder):
    """Chunks from pandas and pyarrow, where they are installed."""
    try:
        import pandas
        import pyarrow.dataset
        import pyarrow.parquet
    except ImportError:
        return
    frame, table = pandas.DataFrame(columns), pyarrow.table(columns)
    batches = table.to_batches(max_chunksize=CHUNK)
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)

    def frames():
        return (frame[first : first + CHUNK] for first in range(0, len(frame), CHUNK))

    found = {
        "pandas frames": frames,
        "pyarrow record batches": lambda: iter(batches),
        "StreamSource.read of Parquet": ed.StreamSource.read(path).again,
        "Parquet by pyarrow's own to_batches": lambda: pyarrow.dataset.dataset(path).to_batches(),
    }
    for name, chunks in found.items():
        yield f"20 columns, {name}", problem, algorithm, columns, chunks, 20, np.float32, 1


def loaders(algorithm, data):
    """DataLoaders that take slices, or gather rows by their numbers; one that collates single rows waits for itself."""
    try:
        torch: Any = importlib.import_module("torch")
        kit: Any = importlib.import_module("torch.utils.data")
    except ImportError:
        return
    tensors = [torch.from_numpy(data["a"]), torch.from_numpy(data["b"])]

    class Slices(kit.IterableDataset):
        def __iter__(self):
            return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)

    rows = kit.TensorDataset(*tensors)
    gathered = kit.DataLoader(
        rows, sampler=kit.BatchSampler(kit.SequentialSampler(rows), CHUNK, False), batch_size=None
    )
    pairs = ed.Problem(lambda x, xi: (xi[0] @ x - xi[1]) ** 2, lambda x, xi: x[:1] * xi[1] - 0.1, ed.Ball(2.0))
    for name, loader in [("slices", kit.DataLoader(Slices(), batch_size=None)), ("rows by their numbers", gathered)]:
        pair = (data["a"], data["b"])
        yield f"torch DataLoader, {name}", pairs, algorithm, pair, lambda loader=loader: loader, 20, np.float32, 1


def throughput(rows, turns, clock, folder):
    """Microseconds a row, of a series, of a stream, and of its chunks when nobody learns from them."""
    print(f"{'microseconds a row':52}{'series':>9}{'stream':>9}{'chunks':>9}{'series / stream':>17}")
    found = []
    for name, problem, algorithm, data, chunks, dim, kind, seeds in cases(rows, folder):
        with jax.enable_x64(kind == np.float64):
            series, x0 = ed.SeriesSource(data), np.zeros(dim, kind)
            count = series.length

            def run(source, problem=problem, algorithm=algorithm, x0=x0, count=count, seeds=seeds):
                return ed.run(algorithm, problem, source, x0=x0, num_samples=count, seeds=seeds, record=10).solution

            jobs = [
                lambda run=run, series=series: run(series),
                lambda run=run, chunks=chunks: run(ed.StreamSource(chunks)),
                lambda chunks=chunks: [None for _ in chunks()],
            ]
            first, second = np.asarray(jobs[0]()), np.asarray(jobs[1]())  # compiled by now
            if not np.array_equal(first, second):
                raise SystemExit(f"{name}: the stream gives other numbers than the series")
            series_us, stream_us, alone_us = (spent / count * 1e6 for spent in best_of(turns, *jobs, clock=clock))
        row = {"name": name, "series": series_us, "stream": stream_us, "chunks": alone_us}
        print(f"{name:52}{series_us:9.3f}{stream_us:9.3f}{alone_us:9.3f}{series_us / stream_us:17.2f}", flush=True)
        found.append(row)
    return found


def compilations():
    """How often the loop is compiled for a problem, over streams and learners of all kinds of lengths."""
    problem, x0, rng = regression(), np.zeros(20, np.float32), np.random.default_rng(1)
    loops = {"StreamSource": advance_on(tuple(jax.devices()[:1])), "Learner": online.take_rows}
    before = {name: loop._cache_size() for name, loop in loops.items()}
    learner = ed.Learner(ed.sdpp(), problem, x0)
    for total in (1, 50, 1_000, 30_000, 300_000):
        data = rows_of(total, 20)
        lengths = rng.integers(1, max(total // 3, 2), 50).tolist()
        ed.run(ed.sdpp(), problem, ed.StreamSource(pieces(data, lengths)), x0=x0, record=10)
        for chunk in pieces(data, lengths)():
            learner.learn(chunk)
    _ = learner.solution
    found = {name: loop._cache_size() - before[name] for name, loop in loops.items()}
    print(f"compilations of the loop, over streams of 1 to 300,000 rows in chunks of all lengths: {found}", flush=True)
    return found


def learners(turns, clock):
    """Microseconds a row of `run` and of a learner in chunks of 1,000; and of a learner row by row beside bare calls.

    The bare calls are `jax.jit` of what a learner computes of a sample, problem and algorithm constants: with all that
    is carried from sample to sample as it is, and with as few arrays as it can be packed into, which is the least.
    """
    print(f"{'':24}{'run':>9}{'chunks':>9}{'ratio':>7}{'row by row':>12}{'bare':>9}{'ratio':>7}{'packed':>9}")
    found = []
    settings = [(20, np.float32, name) for name in ALGORITHMS]
    settings += [(3, np.float32, "EDPP-t"), (200, np.float32, "EDPP-t"), (20, np.float64, "EDPP-t")]
    for dim, kind, name in settings:
        with jax.enable_x64(kind == np.float64):
            row: Any = _learner(turns, clock, dim, kind, ALGORITHMS[name])
        row["name"] = f"{name}, {dim} features, {np.dtype(kind).name}"
        print(
            f"{row['name']:24}{row['run']:9.3f}{row['chunks']:9.3f}{row['chunks'] / row['run']:7.2f}"
            f"{row['single']:12.1f}{row['bare']:9.1f}{row['single'] / row['bare']:7.2f}{row['packed']:9.1f}",
            flush=True,
        )
        found.append(row)
    return found


def _learner(turns, clock, dim, kind, algorithm):
    problem, x0 = regression(), np.zeros(dim, kind)
    data = rows_of(200_000 if dim < 100 else 50_000, dim, kind)
    count, series = len(data["b"]), ed.SeriesSource(data)
    chunks = list(pieces(data, [1_000])())
    singles = [{name: leaf[i] for name, leaf in data.items()} for i in range(2_000)]
    in_chunks, one_by_one = (ed.Learner(algorithm, problem, x0, example=singles[0]) for _ in range(2))
    packed, standing, bare_packed, bare = _bare_calls(one_by_one)

    def repeated(call, state):
        def job():
            now = state
            for xi in singles:
                now = call(now, xi)
            return now

        return job

    def learn(learner, parts):
        for part in parts:
            learner.learn(part)
        return learner.solution

    jobs = [
        lambda: ed.run(algorithm, problem, series, x0=x0, record=10).solution,
        lambda: learn(in_chunks, chunks),
        lambda: learn(one_by_one, singles),
        repeated(bare, standing),
        repeated(bare_packed, packed),
    ]
    best_of(1, *jobs)  # compile
    spent = best_of(turns, *jobs, clock=clock)
    counts = [count, count, *[len(singles)] * 3]
    each = [seconds / number * 1e6 for seconds, number in zip(spent, counts, strict=True)]
    return dict(zip(("run", "chunks", "single", "bare", "packed"), each, strict=True))


def _bare_calls(learner):
    """The state of a learner, packed and as it is, and one sample of it as `jax.jit` alone has it."""
    intake = learner._intake
    setup, layout, packed = intake.setup, intake._layout, list(map(jnp.asarray, intake.packed))

    take_one: Any = online.take_one

    def take(now, xi):
        return take_one.__wrapped__(setup, layout, False, now, xi)

    return (
        packed,
        jax.tree.map(jnp.asarray, layout.unpack(packed)),
        jax.jit(take),
        jax.jit(lambda now, xi: layout.unpack(take(layout.pack(now), xi))),
    )


# The long run


def written(folder, rows):
    """A folder of Parquet files, 20 float32 columns, incompressible: 80 bytes a row."""
    import pyarrow
    import pyarrow.parquet

    rng, schema = np.random.default_rng(0), pyarrow.schema([(name, pyarrow.float32()) for name in COLUMNS])
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        path = folder / f"{number:04}.parquet"
        with pyarrow.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as file:
            left = min(FILE_ROWS, rows - first)
            while left:
                count = min(left, GROUP_ROWS)
                block = rng.standard_normal((len(COLUMNS), count), dtype=np.float32) + np.float32(0.3)
                file.write_table(pyarrow.table(dict(zip(COLUMNS, block, strict=True)), schema), row_group_size=2**17)
                left -= count


def long_run(folder, spelling):
    """Seconds and bytes of one pass over a folder, in this process: the peak, and how much was there before."""
    import pyarrow.dataset

    problem, x0 = tracking(), np.zeros(20, np.float32)
    before = _resident()
    if spelling == "read":
        source = ed.StreamSource.read(folder)
    else:
        source = ed.StreamSource(lambda: pyarrow.dataset.dataset(folder).to_batches())
    began = time.perf_counter()
    result = ed.run(ed.edpp(10.0), problem, source, x0=x0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = time.perf_counter() - began
    return {"rows": int(result.samples[-1]), "seconds": seconds, "peak": peak, "growth": peak - before}


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory(rows):
    found = {}
    with tempfile.TemporaryDirectory(prefix="ergodrift-stream-") as name:
        began = time.perf_counter()
        written(Path(name), rows)
        size = sum(path.stat().st_size for path in Path(name).iterdir())
        spent = time.perf_counter() - began
        print(f"{rows:,} rows, {size / 1e9:.1f} GB of Parquet, written in {spent:.0f} s", flush=True)
        for spelling in ("read", "to_batches"):
            command = [sys.executable, __file__, "--one-pass", name, spelling]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            row = {**json.loads(said.splitlines()[-1]), "bytes": size}
            print(
                f"{spelling}: {row['rows']:,} rows in {row['seconds']:.0f} s, peak {row['peak'] / 1e6:,.0f} MB, of "
                f"which {row['growth'] / 1e6:,.0f} MB by the run",
                flush=True,
            )
            found[spelling] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the comparisons")
    parser.add_argument("--long-rows", type=int, default=10**8, help="of the run on Parquet, 80 bytes each; 0 for none")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--processor-time", action="store_true", help="of all threads, for a machine that is busy")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="of the report; others stay as they are"
    )
    parser.add_argument("--one-pass", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the temporary folder goes with us
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if options.one_pass:
        print(json.dumps(long_run(*options.one_pass)))
        return
    clock, found = time.process_time if options.processor_time else time.perf_counter, {}
    if "throughput" in options.parts:
        with tempfile.TemporaryDirectory(prefix="ergodrift-stream-") as name:
            found["throughput"] = throughput(options.rows, options.turns, clock, Path(name))
    if "compilations" in options.parts:
        found["compilations"] = compilations()
    if "learner" in options.parts:
        found["learner"] = learners(options.turns, clock)
    if "memory" in options.parts and options.long_rows:
        found["memory"] = memory(options.long_rows)
    before = json.loads((OUT / "stream.json").read_text()) if (OUT / "stream.json").exists() else {}
    kept = {part: before[part] for part in PARTS if part in before}
    write("stream", {"unit": "microseconds a row", "chunk": CHUNK, **kept, **found})


if __name__ == "__main__":
    main()
