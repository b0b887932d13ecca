"""Whatever people bring as data: the same numbers in any wrapping give the same run, or are refused by name."""

import datetime
import decimal
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from ergodrift import distributed as dd
from ergodrift._core.arrays import as_arrays

few = settings(max_examples=40, deadline=None)


class Tensor:
    """As much of torch's tensor as is asked of one: it gives its numbers only when detached, and not in bfloat16."""

    def __init__(self, values, *, grad=True, half=False):
        self.values, self.grad, self.half = values, grad, half
        self.shape, self.ndim, self.layout = values.shape, values.ndim, "torch.strided"

    def detach(self):
        return Tensor(self.values, grad=False, half=self.half)

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values.astype(np.float32), grad=self.grad)

    def numpy(self):
        if self.grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        if self.half:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


KINDS = {
    "float": (np.float64, st.floats(-1e6, 1e6)),
    "narrow": (np.float32, st.floats(-1e6, 1e6, width=32)),
    "half": (np.float16, st.floats(-1e3, 1e3, width=16)),
    "brain": (ml_dtypes.bfloat16, st.integers(-100, 100).map(float)),
    "whole": (np.int64, st.integers(-(2**62), 2**62)),
    "unsigned": (np.uint64, st.integers(0, 2**64 - 1)),
    "byte": (np.int8, st.integers(-128, 127)),
    "flag": (np.bool_, st.booleans()),
}


@st.composite
def columns(draw):
    """A table: columns of several kinds, all of one length."""
    rows = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    return {
        f"c{i}": np.array(draw(st.lists(KINDS[kind][1], min_size=rows, max_size=rows)), dtype=KINDS[kind][0])
        for i, kind in enumerate(kinds)
    }


def plain(column):
    return column.astype(np.float32) if column.dtype == ml_dtypes.bfloat16 else column


def wrappings(table):
    """The same table as other libraries have it."""
    simple = {name: plain(column) for name, column in table.items()}
    yield "dict", table
    yield "jax", {n: jnp.asarray(c) if c.dtype.itemsize < 8 else c for n, c in table.items()}
    yield "lists", {name: column.tolist() for name, column in simple.items()}
    yield "pandas", pd.DataFrame(simple)
    yield "pandas, index", pd.DataFrame(simple, index=range(7, 7 + len(simple["c0"])))
    yield "series", {name: pd.Series(column) for name, column in simple.items()}
    yield "arrow", pa.table(simple)
    yield "batch", pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in simple.items()})
    yield "chunks", pa.concat_tables([pa.table(simple).slice(0, 1), pa.table(simple).slice(1)])
    yield "masked", {name: np.ma.array(column) for name, column in simple.items()}
    yield "swapped", {name: column.astype(column.dtype.newbyteorder()) for name, column in simple.items()}
    yield "strided", {name: np.repeat(column, 2)[::2] for name, column in simple.items()}
    yield "tensor", {name: Tensor(column, half=table[name].dtype != column.dtype) for name, column in simple.items()}
    yield "fields", np.rec.fromarrays(list(simple.values()), names=",".join(simple))  # type: ignore[arg-type]
    whole = {"Int64": np.int64, "UInt64": np.uint64, "Int8": np.int8, "Float64": np.float64, "boolean": np.bool_}
    names = {np.dtype(kind): name for name, kind in whole.items()}
    yield "nullable", pd.DataFrame({n: pd.Series(c, dtype=names.get(c.dtype)) for n, c in simple.items()})


@few
@given(columns())
def test_the_same_numbers_in_any_wrapping_are_the_same_arrays(table):
    for name, wrapped in wrappings(table):
        found = as_arrays("data", wrapped)
        assert sorted(found) == sorted(table), name
        for column, values in table.items():
            array = np.asarray(found[column])
            assert jnp.issubdtype(array.dtype, np.number) or array.dtype == bool
            assert array.dtype.itemsize >= 4 or not jnp.issubdtype(array.dtype, np.floating), name
            assert array.tolist() == plain(values).tolist(), (name, column)


def test_torch_itself():
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16), torch.tensor([1, 1, 1])):
        assert as_arrays("data", tensor).tolist() == [1, 1, 1]
    assert as_arrays("data", torch.eye(2).to_sparse()).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("data", "shapes"),
    [
        ([1, 2, 3], (3,)),
        ([[1.0, 2.0], [3.0, 4.0]], (2, 2)),
        ([(1.0, 2.0), (3.0, 4.0)], (2, 2)),
        ([[[1], [2]]], (1, 2, 1)),
        ((1.0, 2.0), (2,)),
        (([1.0, 2.0], [[3.0], [4.0]]), ((2,), (2, 1))),
        ([np.ones(2), np.ones((2, 3))], [(2,), (2, 3)]),
        (range(4), (4,)),
        ({"a": pd.DataFrame({"b": [1.0]}), "c": [2.0]}, {"a": {"b": (1,)}, "c": (1,)}),
        (pd.DataFrame(np.ones((2, 2))), {0: (2,), 1: (2,)}),
        ([np.float32(1), jnp.ones(())], (2,)),
    ],
)
def test_what_is_an_array_and_what_is_structure(data, shapes):
    assert jax.tree.map(np.shape, as_arrays("data", data)) == shapes


DAYS = pd.to_datetime(["2024-01-01", "2024-01-02"])
REFUSED = {
    "text": (pd.DataFrame({"a": [1.0, 2.0], "city": ["Rome", "Oslo"]}), r"data\['city'\] holds .*not numbers.*'Rome'"),
    "arrow text": (pa.table({"city": ["Rome"]}), r"data\['city'\] holds .*not numbers"),
    "text in a list": (["a", "b"], r"data holds <U1, not numbers"),
    "text among numbers": ({"k": [1.0, "b"]}, r"data\['k'\] holds <U\d+, not numbers"),
    "objects": (pd.DataFrame({"k": pd.Series([1, "x"], dtype=object)}), r"data\['k'\] holds objects.*'x'"),
    "decimals": ([decimal.Decimal("0.1")], r"data holds objects.*Decimal"),
    "none": ([1.0, None], r"data holds objects.*None"),
    "both signs": ([2**63, -1], r"data holds objects, not numbers, such as 9223372036854775808"),
    "too wide": ([2**70], r"data holds objects, not numbers, such as 1180591620717411303424"),
    "missing": (pd.DataFrame({"k": pd.Series([1, None, 3], dtype="Int64")}), r"data\['k'\] has no value at row 1"),
    "nan": (pd.DataFrame({"k": [1.0, 2.0, np.nan]}), r"data\['k'\] has no value at row 2"),
    "null": (pa.table({"k": [None, 1]}), r"data\['k'\] has no value at row 0"),
    "masked": (np.ma.array([[1.0, 2.0]], mask=[[False, True]]), r"data has no value at index \(0, 1\)"),
    "categories": (pd.DataFrame({"k": pd.Categorical(["a", "b"])}), r"data\['k'\] holds categories.*codes"),
    "dictionary": (pa.table({"k": pa.array(["a", "b"]).dictionary_encode()}), r"data\['k'\] holds categories"),
    "dates": (pd.DataFrame({"t": DAYS}), r"data\['t'\] holds datetime64.*seconds since the start"),
    "dates with a zone": (pd.DataFrame({"t": DAYS.tz_localize("UTC")}), r"data\['t'\] holds datetime64.*seconds"),
    "dates of numpy": (np.array(["2024-01-01"], "M8[D]"), r"data holds datetime64\[D\].*seconds"),
    "dates of arrow": (pa.table({"t": [datetime.date(2024, 1, 1)]}), r"data\['t'\] holds datetime64"),
    "spans": ({"t": DAYS - DAYS[0]}, r"data\['t'\] holds timedelta64"),
    "ragged": ([[1.0, 2.0], [3.0]], r"data: the rows of this list differ in length"),
    "deeply ragged": ({"k": [[[1], [2]], [[3], [4, 5]]]}, r"data\['k'\]: the rows of this list differ in length"),
    "vectors": (pa.table({"v": [[1.0, 2.0], [3.0, 4.0]]}), r"data\['v'\] holds objects"),
    "sparse": (scipy.sparse.eye(3), r"data is a sparse matrix.*toarray"),
    "names twice": (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), r"two columns of the table have the name 'a'"),
    "names of two types": (pd.DataFrame({"a": [1.0], 1: [2.0]}), r"cannot be sorted"),
    "set": ({1.0, 2.0}, r"data holds set, not an array"),
    "generator": ((x for x in [1.0]), r"data holds generator, not an array"),
    "records": ([{"a": 1.0}, {"a": 2.0}], r"every array needs a leading axis.*not a list of dicts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_number_is_refused_by_name_when_a_source_is_made(case):
    data, message = REFUSED[case]
    chain = ed.MarkovChain(np.full((2, 2), 0.5))
    for make in (ed.SeriesSource, ed.IIDSource, lambda data: ed.MarkovSource(chain, data)):
        with pytest.raises(ValueError, match=message):
            make(data)


PRICE = ed.Problem(lambda x, xi: jnp.sum((x - xi["price"]) ** 2), lambda x, xi: x - xi["cap"], ed.Ball(5.0))
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({
    "price": RNG.normal(size=300), "cap": RNG.uniform(0.1, 1.0, size=300), "sold": RNG.integers(9, size=300)
})  # fmt: skip
COLUMNS = {name: TABLE[name].to_numpy() for name in TABLE}


@pytest.mark.parametrize("table", [TABLE, pa.table(COLUMNS), {n: c.tolist() for n, c in COLUMNS.items()}])
def test_a_table_goes_all_the_way(table):
    def everything(data):
        source = ed.SeriesSource(data)
        result = ed.run(ed.dpp(), PRICE, source, x0=np.zeros(1), record=5)
        monitor = ed.Monitor(PRICE, np.zeros(1), tau_mix=1, bounds=(-2, 2)).update(data)
        return (
            result.x_mean,
            ed.certify(PRICE, np.zeros(1), source).upper,
            monitor.upper,
            ed.diagnose(data, PRICE, np.array([0.1])).tau_mix,
            jax.tree.map(np.asarray, dd.Agent(data).load()),
        )

    jax.tree.map(np.testing.assert_array_equal, everything(table), everything(COLUMNS))


def test_no_library_is_imported_for_it():
    code = (
        "import sys, numpy as np, ergodrift as ed\n"
        "ed.SeriesSource({'a': [1.0, 2.0], 'b': np.ones(2)})\n"
        "print({'pandas', 'pyarrow', 'torch', 'polars'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


# Numbers that do not fit into 32 bits.

MILLION = ed.Problem(lambda x, xi: 0 * jnp.sum(x) + 1e-9 * xi["t"].astype(x.dtype), lambda x, xi: x, ed.Ball(1.0))
EDGES = st.sampled_from([0, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 1_700_000_000_000, 2**63 - 1])


@few
@given(
    st.sampled_from([np.int32, np.int64, np.uint32, np.uint64]),
    st.lists(st.tuples(EDGES, st.integers(-3, 3), st.sampled_from([1, -1])), min_size=4, max_size=4),
)
def test_whole_numbers_are_taken_as_they_are_or_refused_by_name_but_never_wrapped(kind, parts):
    limits = np.iinfo(kind)
    numbers = [min(max(sign * (edge + near), limits.min), limits.max) for edge, near, sign in parts]
    data = {"t": np.array(numbers, dtype=kind)}
    with jax.enable_x64(False):
        narrow = np.iinfo(np.int32 if limits.min < 0 else np.uint32)
        fits = all(narrow.min <= number <= narrow.max for number in numbers)
        for source in (
            ed.SeriesSource(data),
            ed.IIDSource(data),
            ed.Zip(ed.SeriesSource(np.ones(4)), ed.IIDSource(data)),
        ):
            if fits:
                source.stream()
            else:
                with pytest.raises(ValueError, match=r"data\['t'\] holds -?\d+, too large for u?int32.*jax_enable_x64"):
                    source.stream()
        if fits:
            result = ed.run(ed.dpp(), MILLION, ed.SeriesSource(data), x0=np.zeros(1, np.float32), record=1)
            exact = sum(number * 1e-9 for number in numbers)
            scale = sum(abs(number) * 1e-9 for number in numbers)
            assert float(result.loss_sum[0, -1]) == pytest.approx(exact, abs=1e-5 * scale + 1e-3)
    with jax.enable_x64(True):  # with 64 bits all are as they are
        assert ed.SeriesSource(data).stream().data["t"].tolist() == numbers


def test_numbers_that_wrap_are_refused_wherever_they_come_in():
    late = np.int64(1_700_000_000_000)
    method = ed.dpp().bind(MILLION)
    with jax.enable_x64(False):
        x0 = np.zeros(1, np.float32)
        state = method.init(x0, 1)
        with pytest.raises(ValueError, match=r"xi\['t'\] holds 1700000000000, too large for int32"):
            MILLION.feedback(state.x, {"t": late})
        whole = MILLION.feedback(state.x, {"t": np.int64(3)})
        with pytest.raises(ValueError, match=r"feedback.*\.loss holds 1700000000000, too large"):
            method.step(state, whole._replace(loss=late))
        with pytest.raises(ValueError, match=r"levels must be below 2\^31, got 4294967297"):
            ed.run(ed.mdpp(cap=4), MILLION, ed.IIDSource({"t": np.ones(4)}), x0=x0, num_samples=9, levels=[2**32 + 1])
        with pytest.raises(ValueError, match=r"levels must be below 2\^31, got 4294967297"):
            ed.mdpp(cap=4).bind(MILLION).init(x0, 1, np.array([2**32 + 1]))
        with pytest.raises(ValueError, match="paths must hold states between 0 and 3, got 4294967296 to"):
            ed.run(ed.dpp(), MILLION, ed.IIDSource({"t": np.ones(4)}), x0=x0, paths=np.array([2**32, 2**32 + 1]))
        with pytest.raises(ValueError, match=r"data holds 1e\+300, too large for float32"):
            ed.SeriesSource([1.0, 1e300]).stream()
        # Certificates and references are computed with 64 bits whatever the mode: nothing is lost there.
        times = ed.SeriesSource({"t": late + RNG.permutation(400)})
        late_enough = ed.Problem(MILLION.loss, lambda x, xi: x + 1700 - 1e-9 * xi["t"].astype(x.dtype), ed.Ball(1.0))
        found = ed.certify(late_enough, np.zeros(1), times)
        assert found.loss_estimate == pytest.approx(1700 + 199.5e-9, rel=1e-12)


# Half precision.


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
def test_points_in_half_precision_are_refused_and_data_in_it_are_not(kind):
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.3 + 0.1 * xi[:1], ed.Ball(2.0))
    half = jnp.asarray(RNG.normal(size=(400, 2)), kind)
    source = ed.SeriesSource(half)
    refusal = r"x0 must be float32 or float64, got b?float16.*x0.astype\('float32'\). Data may be in half precision"
    with pytest.raises(TypeError, match=refusal):
        ed.run(ed.dpp(), problem, source, x0=jnp.zeros(2, kind))
    with pytest.raises(TypeError, match=refusal):
        ed.dpp().bind(problem).init(jnp.zeros(2, kind), 1)
    for x0 in (np.zeros(2), np.zeros(2, np.float32)):
        exact = ed.SeriesSource(np.asarray(half, np.float64))
        one, other = (ed.run(ed.dpp(), problem, given, x0=x0, record=1) for given in (source, exact))
        np.testing.assert_array_equal(one.solution, other.solution)
    assert ed.solve_reference(problem, source).value == ed.solve_reference(problem, exact).value
    # A point to look at may be in any precision: it is one point, not a sum of thousands.
    point = jnp.asarray([0.25, -0.5], kind)
    assert ed.certify(problem, point, source).estimate == ed.certify(problem, np.array([0.25, -0.5]), exact).estimate


def test_a_nan_in_half_precision_is_found():
    for kind in (jnp.bfloat16, np.float16):
        with pytest.raises(ValueError, match=r"data holds nan at index \(1,\)"):
            ed.SeriesSource(np.array([1.0, np.nan], kind))


# Paths.


@few
@given(st.integers(1, 6), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 40)))
def test_paths_are_used_whole_or_refused_with_both_numbers(rows, length, num_samples):
    source, other = ed.SeriesSource(np.arange(rows) / rows), ed.IIDSource(np.ones(2))
    path = np.random.default_rng(length).integers(rows, size=length)
    for given_source, paths in ((source, path), (ed.Zip(source, other), (path, path % 2))):
        assert given_source.samples_in(paths) == length
        if num_samples in (None, length):
            given_source.check_paths(paths, 2, length)
        else:
            short_or_long = "short" if length < num_samples else "long"
            message = rf"paths too {short_or_long}: {length} samples per seed, but num_samples={num_samples}"
            with pytest.raises(ValueError, match=message):
                given_source.check_paths(paths, 2, num_samples)


def test_a_path_longer_than_a_series_is_replayed_to_its_end():
    series, path = RNG.normal(size=(300, 1)), RNG.integers(300, size=1500)
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x - 0.1, ed.Ball(2.0))
    replayed = ed.run(ed.dpp(), problem, ed.SeriesSource(series), x0=np.zeros(1), paths=path, record=3)
    written_out = ed.run(ed.dpp(), problem, ed.SeriesSource(series[path]), x0=np.zeros(1), record=3)
    assert replayed.samples.tolist() == [500, 1000, 1500]
    np.testing.assert_array_equal(replayed.x_mean, written_out.x_mean)
    with pytest.raises(ValueError, match="paths too long: 1500 samples per seed, but num_samples=300"):
        ed.run(ed.dpp(), problem, ed.SeriesSource(series), x0=np.zeros(1), paths=path, num_samples=300)
    with pytest.raises(ValueError, match="paths must hold states between 0 and 299, got 0 to 300"):
        ed.run(ed.dpp(), problem, ed.SeriesSource(series), x0=np.zeros(1), paths=np.arange(301))
    pair = ed.Zip(ed.SeriesSource(series), ed.SeriesSource(series))
    with pytest.raises(ValueError, match="paths of a Zip must be equally long, got 5 and 4"):
        ed.run(ed.dpp(), problem, pair, x0=np.zeros(1), paths=(np.arange(5), np.arange(4)))
    for nothing in ([], np.zeros((1, 0), int), 3):
        with pytest.raises(ValueError, match="paths must hold entries"):
            ed.run(ed.dpp(), problem, ed.SeriesSource(series), x0=np.zeros(1), paths=nothing)
