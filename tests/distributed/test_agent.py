"""Agents load their data themselves, where they run."""

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from ergodrift import distributed as dd
from walks import close

pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

COLUMN = np.array([0.25, 0.75])


def test_agents_load_files_and_functions_where_they_run(cluster, tmp_path):
    np.savez(tmp_path / "a.npz", v=COLUMN)
    problem = ed.Problem(mean_square, lambda x, xi: x[:1] - 0.5, ed.Ball(1.0))
    with dd.Network([dd.Agent(tmp_path / "a.npz"), dd.Agent(lambda: COLUMN)]) as network:
        options = {"x0": np.zeros(1), "num_samples": 6}
        walk = dd.walk(ed.edpp(2.0), problem, 1 - np.eye(2), network, paths=np.arange(6) % 2, **options)
    close(walk.result, ed.run(ed.edpp(2.0), problem, ed.IIDSource(COLUMN[None]), **options), 1e-12)


def test_all_kinds_of_files_hold_the_same_numbers(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.feather
    import pyarrow.parquet

    np.save(tmp_path / "a.npy", COLUMN)
    np.savez(tmp_path / "a.npz", v=COLUMN)
    table = pa.table({"v": COLUMN})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "a.arrow")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert np.array_equal(dd.Agent(str(tmp_path / "a.npy")).load(), COLUMN)
    for name in ("a.npz", "a.parquet", "a.arrow", "b.arrow"):
        loaded = dd.Agent(tmp_path / name).load()
        assert list(loaded) == ["v"]
        assert np.array_equal(loaded["v"], COLUMN)


def test_columns_must_hold_numbers(tmp_path):
    np.savez(tmp_path / "a.npz", v=np.ones(2), name=np.array(["x", "y"]))
    with pytest.raises(ValueError, match=r"data\['name'\] holds <U1, not numbers"):
        dd.Agent(tmp_path / "a.npz").load()


def mean_square(x, xi):
    """Of a column that comes in a dict from some files."""
    values = xi["v"] if isinstance(xi, dict) else xi
    return jnp.mean((x - values) ** 2)
