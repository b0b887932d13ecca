"""Tables in files: spellings, chunks, what is no table; what columns hold, how they become numbers; model files."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ergodrift.tables import Model, Schema, Table, TableError, guess, survey

pytestmark = pytest.mark.x64("tables are read in float64, whatever JAX is set to: once is enough")


def written(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def encoded(path, **options):
    """The whole table as numbers by the schema that is guessed from it."""
    table = Table(path)
    schema = guess(survey(table).values(), **options)
    parts = [schema.encode(chunk, table.decimal_comma)[0] for chunk in table.chunks(table.names)]
    return schema, np.concatenate(parts)


# Files


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1.5,x\n2.5,y z\n",
        "a;b\n1.5;x\n2.5;y z\n",
        "a;b\n1,5;x\n2,5;y z\n",
        "a\tb\n1.5\tx\n2.5\ty z\n",
        "a|b\r\n1.5|x\r\n2.5|y z\r\n",
        b"\xef\xbb\xbfa,b\n1.5,x\n2.5,y z\n",
        '"a","b"\n"1.5","x"\n"2.5","y z"\n',
        "a,b\n 1.5 , x\n2.5,y z \n",
        '"a",b\n1.5,x\n2.5,y z',
    ],
)
def test_a_csv_file_is_read_however_it_is_spelt(tmp_path, text):
    schema, rows = encoded(written(tmp_path, text))
    assert schema.names == ["a", "b = x", "b = y z"]
    np.testing.assert_array_equal(rows, [[1.5, 1, 0], [2.5, 0, 1]])


def test_packed_files_and_other_suffixes(tmp_path):
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(gzip.compress(b"a,b\n1,2\n5,3\n"))
    parquet.write_table(pa.table({"a": [1, 5], "b": [2, 3]}), tmp_path / "table.data")
    for path in (packed, tmp_path / "table.data"):
        np.testing.assert_array_equal(encoded(path)[1], [[1, 2], [5, 3]])


def test_csv_and_parquet_agree_and_folders_are_read_in_order(tmp_path):
    columns = {
        "n": [1, 2, None, 4],
        "f": [0.5, None, 2.5, 1.0],
        "c": ["u", "v", None, "u"],
        "t": [True, None, False, True],
    }
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "all.parquet")
    folder = tmp_path / "parts"
    for number in range(2):
        (folder / f"half={number}").mkdir(parents=True)
        parquet.write_table(table.slice(2 * number, 2), folder / f"half={number}" / "part.parquet")
    lines = ["n,f,c,t", "1,0.5,u,true", "2,,v,NA", ",2.5,,false", "4,1.0,u,true"]
    of_csv = encoded(written(tmp_path, "\n".join(lines)))
    for other in (encoded(tmp_path / "all.parquet"), encoded(folder)):
        assert other[0].names[: len(of_csv[0].names)] == of_csv[0].names
        np.testing.assert_allclose(other[1][:, : len(of_csv[0].names)], of_csv[1])
    assert encoded(folder)[0].names[-1] == "half"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n\n", "is empty"),
        ("a,b\n", "has names of columns and no rows"),
        ("a,a,b\n1,2,3\n", "more than one column 'a'"),
        ("1,2\n3,4\n", "not with names of columns; add a line with names"),
        ("a,b\n1,2,3\n", "Expected 2 columns, got 3"),
        ("a,b\n1,2\n1\n", "Expected 2 columns, got 1"),
        (b"PK\x03\x04\x00\x00\x00", "no text in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "no text in UTF-8"),
        (b"a,b\n1,\xfc\n", "invalid UTF8 data; save it as CSV in UTF-8"),
        (b"\xfc,b\n1,2\n", "no text in UTF-8"),
    ],
)
def test_what_is_no_table_is_said_in_a_line(tmp_path, text, said):
    with pytest.raises(TableError, match=said) as caught:
        survey(Table(written(tmp_path, text)))
    assert "\n" not in str(caught.value)


def test_missing_files_and_names_come_with_a_suggestion(tmp_path):
    path = written(tmp_path, "late,carrier\n1,UA\n", "flights.csv")
    with pytest.raises(TableError, match=r"flight\.csv does not exist; did you mean .*flights\.csv\?"):
        Table(tmp_path / "flight.csv")
    with pytest.raises(TableError, match=r"nor does the folder"):
        Table(tmp_path / "nowhere" / "flights.csv")
    for wrong in ("lat", "Late", "late "):
        with pytest.raises(TableError, match=r"--target '.*' is no column of .*; did you mean 'late'\?"):
            Table(path).find("--target", wrong)
    with pytest.raises(TableError, match=r"folder without \.parquet files"):
        Table(tmp_path)
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        Table(written(tmp_path, "a,b\n1,2\n", "not.parquet"))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.randoms())
def test_chunks_are_of_equal_length_and_hold_every_row_once(tmp_path_factory, rows, size, random):
    values = [random.choice(["a", "b", ""]) for _ in range(rows)]
    path = written(tmp_path_factory.mktemp("t"), "x,y\n" + "".join(f"{v},{i}\n" for i, v in enumerate(values)))
    chunks = list(Table(path).chunks(["y", "x"], rows=size))
    assert all(chunk.num_rows == size for chunk in chunks[:-1])
    assert [value or "" for chunk in chunks for value in chunk.column("x").to_pylist()] == values
    assert [int(value) for chunk in chunks for value in chunk.column("y").to_pylist()] == list(range(rows))


# What columns hold


def test_kinds_are_guessed_from_all_rows_and_said(tmp_path):
    """A column is what all its cells are, however late the first that is something else."""
    rows = 70_000  # more than a chunk
    lines = [
        f"{i},{i % 7},{i % 3 == 0},2013-01-{i % 28 + 1:02},name {i},{'x' if i == rows - 1 else i % 5},7,{i % 2}.0"
        for i in range(rows)
    ]
    path = written(tmp_path, "row,week,yes,day,id,mixed,same,half\n" + "\n".join(lines))
    schema = guess(survey(Table(path)).values(), categories=["half"])
    kinds = {feature.name: feature.kind for feature in schema.features}
    assert kinds == {"week": "number", "yes": "true or false", "mixed": "category", "half": "category"}
    assert schema.features[-1].levels == ("0", "1")
    assert set(schema.left_out) == {"row", "day", "id", "same"}
    said = "\n".join(schema.said())
    assert "row: left out, it counts the rows" in said
    assert "day: left out, it holds dates or times; name it in --time" in said
    assert "id: left out, it has more than 1,000 different values, as names and identifiers do" in said
    assert "same: left out, it is always '7'" in said
    asked = guess(survey(Table(path), ["day", "row"]).values(), named=["day", "row"])
    assert asked.names == ["day (days)", "row"]


def test_numbers_with_a_stray_cell_are_told_from_names(tmp_path):
    lines = [
        f"{'oops' if i == 70 else i / 7},{'80+' if i % 5 == 0 else i % 5},{'-inf' if i == 9 else i}" for i in range(200)
    ]
    path = written(tmp_path, "value,age,height\n" + "\n".join(lines))
    found = survey(Table(path))
    schema = guess(found[name] for name in ("value", "age"))
    assert schema.left_out == {
        "value": "most of its cells are numbers, but not 'oops': mend such cells, or leave them empty"
    }
    assert schema.features[0].levels == ("1", "2", "3", "4", "80+")
    with pytest.raises(TableError, match="column 'height' holds 1 infinite numbers"):
        guess([found["height"]])


def test_mean_and_spread_are_those_of_all_rows(tmp_path):
    rng = np.random.default_rng(0)
    values = 1e6 + rng.normal(size=150_000)
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"v": values, "w": np.where(rng.random(150_000) < 0.1, np.nan, values)}), path)
    found = survey(Table(path))
    assert found["v"].mean == pytest.approx(values.mean(), rel=1e-12)
    assert found["v"].std == pytest.approx(values.std(), rel=1e-6)
    schema, rows = encoded(path)
    assert schema.names == ["v", "w", "w is missing"]
    np.testing.assert_allclose(rows.mean(axis=0), [m for f in schema.features for m in f.means], rtol=1e-9)
    np.testing.assert_allclose(rows.std(axis=0), [s for f in schema.features for s in f.stds], rtol=1e-6)


def test_times_steps_back_and_row_numbers(tmp_path):
    path = written(tmp_path, "t,z\n2013-01-01T00:00:00Z,0\n2013-01-01T02:00:00+01:00,1\n2012-12-31T23:00:00Z,5\n")
    found = survey(Table(path))
    assert found["t"].is_time
    assert found["t"].steps_back == 1
    assert found["t"].least == 1356994800.0
    assert not found["z"].is_row_number


def test_rare_categories_share_a_column_and_unknown_ones_are_counted(tmp_path):
    labels = ["a"] * 900 + ["b"] * 97 + ["c", "d", "e"]
    path = written(tmp_path, "k,v\n" + "\n".join(f"{label},{i % 3}" for i, label in enumerate(labels)))
    schema, rows = encoded(path)
    assert schema.features[0].levels == ("a", "b", "(other)")
    np.testing.assert_allclose(rows[:, :3].sum(axis=0), [900, 97, 3])
    later = Table(written(tmp_path, "v,k\n1,b\n,zz\n2,\n0,zz\n", "later.csv"))
    (chunk,) = later.chunks(later.names)
    rows, unknown = schema.encode(chunk, later.decimal_comma)
    np.testing.assert_allclose(rows, [[0, 1, 0, 1], [0, 0, 1, schema.features[1].fill], [0, 0, 1, 2], [0, 0, 1, 0]])
    assert unknown == {"k": {"zz": 2, "(missing)": 1}, "v": {"(missing)": 1}}


def test_without_rare_ones_an_unknown_category_is_the_average(tmp_path):
    """The zero code: the score of a row whose category has the average effect."""
    path = written(tmp_path, "k\n" + "u\n" * 30 + "v\n" * 10)
    schema, rows = encoded(path)
    coef, intercept = schema.centred(np.array([[2.0, 6.0]]), np.array([1.0]))
    np.testing.assert_allclose(intercept, [1 + 2 * 0.75 + 6 * 0.25])
    np.testing.assert_allclose(rows @ coef.T + intercept, rows @ [[2.0], [6.0]] + 1)
    np.testing.assert_allclose((rows @ coef.T).mean(), 0, atol=1e-12)


def test_numbers_that_are_none_any_more_and_infinite_ones_are_refused(tmp_path):
    schema, _ = encoded(written(tmp_path, "v,w\n1,2\n3,9\n"))
    later = Table(written(tmp_path, "v,w\n1,2\nmany,9\n", "later.csv"))
    with pytest.raises(TableError, match="column 'v' held numbers when the model was fitted"):
        schema.encode(next(later.chunks(later.names)), False)
    with pytest.raises(TableError, match="column 'v' holds 1 infinite numbers"):
        encoded(written(tmp_path, "v,w\n1,2\ninf,9\n"))


# Models


def model(tmp_path):
    schema, rows = encoded(written(tmp_path, "v,k\n1,a\n2,b\n4,a\n"))
    return Model("y", "logistic", ("no", "yes"), np.array([[0.5, -1.0, 1.0]]), np.array([0.25]), schema), rows


def test_a_model_file_comes_back_as_it_was(tmp_path):
    before, rows = model(tmp_path)
    before.save(tmp_path / "model.json")
    after = Model.load(tmp_path)
    assert Schema.from_json(json.loads(json.dumps(before.schema.to_json()))) == before.schema == after.schema
    np.testing.assert_array_equal(after.probabilities(rows), before.probabilities(rows))
    np.testing.assert_allclose(before.scores(rows)[:, 0], [-0.25, 2.25, 1.25])
    found = before.probabilities(rows)
    assert found is not None
    np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp([0.25, -2.25, -1.25])))
    np.testing.assert_array_equal(before.predict(rows), [0, 1, 1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"format": "ergodrift model v0"},
            "its format is 'ergodrift model v0', this version reads 'ergodrift model v1'",
        ),
        ({"coef": [[1.0, 2.0]]}, "is damaged: ValueError: coef .* do not fit"),
        ({"coef": [[1.0, 2.0, float("nan")]]}, "is damaged: ValueError: .*not finite"),
        ({"loss": "squared"}, "does not fit the classes"),
        ({"schema": {}}, "is damaged: KeyError"),
        ({"columns": ["v"]}, "columns differ"),
        (None, "is not JSON, or it is cut short"),
    ],
)
def test_damaged_models_are_refused(tmp_path, change, said):
    model(tmp_path)[0].save(tmp_path / "model.json")
    content = (tmp_path / "model.json").read_text()
    text = content[:100] if change is None else json.dumps(json.loads(content) | change)
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(TableError, match=said):
        Model.load(tmp_path / "model.json")
    with pytest.raises(TableError, match="`ergodrift fit` writes such files"):
        Model.load(tmp_path / "nothing.json")
