"""Results of any structure, saved and read again; files with any byte changed or cut anywhere."""

from __future__ import annotations

import collections
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from ergodrift._core import saved
from ergodrift.engine.result import FORMAT, KNOWN, Result
from ergodrift.types import Weights

PROPERTY = settings(derandomize=True, database=None, deadline=None, max_examples=60)


class Mine(NamedTuple):
    w: Any
    b: Any


DTYPES = [np.float64, np.float32, np.float16, jnp.bfloat16, np.int32, np.int64, np.uint8, np.bool_]
keys = st.one_of(st.text(max_size=5), st.integers(-3, 3))
arrays = st.builds(
    lambda kind, shape, seed: np.random.default_rng(seed).normal(size=shape).astype(kind),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.integers(0, 99),
)
trees = st.recursive(
    st.one_of(arrays, st.none(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.lists(st.tuples(keys, inner), max_size=3).map(collections.OrderedDict),
        st.builds(Mine, inner, inner),
        st.builds(Weights, inner, inner),
    ),
    max_leaves=8,
)


def equal(a: Any, b: Any) -> None:
    """The same structure, dtypes, shapes and bits; a NamedTuple of one's own by its name and fields."""
    if isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, Mine | Weights):
        assert (type(a).__name__, a._fields) == (type(b).__name__, b._fields)
        assert (type(a) is type(b)) == isinstance(a, Weights)
        for one, other in zip(a, b, strict=True):
            equal(one, other)
    else:
        assert type(a) is type(b)
        if isinstance(a, dict):
            assert list(a) == list(b)
            a, b = list(a.values()), list(b.values())
        if isinstance(a, list | tuple):
            for one, other in zip(a, b, strict=True):
                equal(one, other)
        else:
            assert a == b


@PROPERTY
@given(tree=trees)
def test_any_structure_comes_back(tree):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        saved.write(path, "ergodrift result v0", {"tree": tree}, KNOWN)
        equal({"tree": tree}, saved.read(path, "ergodrift result v0", KNOWN))
        assert list(Path(folder).iterdir()) == [path]


class Strange:
    pass


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [Strange()]}, r"result\['tree'\]\['a'\]\[0\] holds object"),
        ({(1, 2): np.zeros(2)}, r"result\['tree'\] has the key \(1, 2\)"),
        (ed.Ball(1.0), r"result\['tree'\] is of type Ball, which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path, tree, message):
    with pytest.raises(TypeError, match=message):
        saved.write(tmp_path / "file", "ergodrift result v0", {"tree": tree}, KNOWN)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a saved result whose x is a nest of dict, tuple, list and NamedTuple."""
    x0 = {"a": (np.zeros(2), [np.zeros(1)]), "b": Mine(np.zeros(1), np.zeros(()))}
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x["a"][0] - xi) ** 2) + x["b"].w[0] ** 2,
        lambda x, xi: x["a"][1][0] - x["b"].b,
        ed.Ball(2.0),
    )
    source = ed.IIDSource(np.eye(2))
    found = ed.run(ed.edpp(1.0), problem, source, x0=x0, num_samples=50, record=2)
    path = tmp_path_factory.mktemp("saved") / "result"
    found.save(path)
    loaded = ed.load_result(path)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(loaded), jax.tree.leaves(found))
    assert (type(loaded.x["a"]), type(loaded.x["a"][1])) == (tuple, list)
    reference = ed.solve_reference(problem, source, x0)
    for one, other in zip(
        *(ed.metrics.evaluate(result, problem, source, reference) for result in (loaded, found)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    again = ed.load_result(path)
    assert jax.tree.structure(again) == jax.tree.structure(loaded)  # one structure, so that they can be compared
    return path.read_bytes()


@PROPERTY
@given(data=st.data())
def test_a_result_with_any_byte_changed_or_cut_anywhere_is_refused_or_read_as_it_was(whole, data):
    content = bytearray(whole)
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with tempfile.TemporaryDirectory() as folder:
        path, good = Path(folder) / "file", Path(folder) / "good"
        path.write_bytes(content)
        good.write_bytes(whole)
        try:
            found, why = ed.load_result(path), ""
        except ValueError as error:
            found, why = None, str(error)
        if found is None:
            assert str(path) in why
            assert FORMAT in why
        else:
            assert isinstance(found, Result)
            jax.tree.map(np.testing.assert_array_equal, found, ed.load_result(good))
