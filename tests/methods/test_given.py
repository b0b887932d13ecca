"""What a caller passes: lists are arrays, what cannot be taken is refused with what to write instead."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import ergodrift as ed
from ergodrift._core.arrays import as_arrays
from ergodrift.methods.given import check_kinds

SOURCE = ed.SeriesSource(np.random.default_rng(0).normal(size=(64, 2)))
PROBLEM = ed.Problem(
    lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5, ed.Box(np.full(2, -1.0), np.full(2, 1.0))
)


def test_lists_of_numbers_are_arrays_wherever_a_point_is_asked_for():
    listed = ed.Problem(PROBLEM.loss, PROBLEM.constraints, ed.Box([-1.0, -1.0], [1.0, 1.0]))
    runs = [
        ed.run(ed.sdpp(), problem, SOURCE, x0=x0).solution
        for problem, x0 in [(PROBLEM, np.zeros(2)), (listed, [0.0, 0.0])]
    ]
    np.testing.assert_array_equal(*runs)
    held = ed.SeriesSource(np.random.default_rng(1).normal(size=(64, 2)))
    assert ed.certify(PROBLEM, [0.2, 0.0], held).estimate == pytest.approx([-0.3], abs=1e-6)
    assert ed.Monitor(PROBLEM, [0.2, 0.0]).update(held.data).estimate == pytest.approx([-0.3], abs=1e-6)


def test_lists_of_arrays_stay_structure():
    two = ed.Problem(lambda x, xi: jnp.sum(x[0] ** 2) + x[1] ** 2, lambda x, xi: x[0][:1] - xi[:1], ed.Ball(1.0))
    found = ed.run(ed.sdpp(), two, SOURCE, x0=[np.zeros(2), np.zeros(())], num_samples=8)
    assert [leaf.shape for leaf in found.solution] == [(1, 2), (1,)]


@pytest.mark.parametrize("x", [np.zeros(2, int), [0, 0], "middle", np.zeros(2, bool)], ids=str)
@pytest.mark.parametrize("ask", [ed.certify, ed.diagnose, ed.solve_reference], ids=lambda ask: ask.__name__)
def test_a_point_without_floating_point_numbers_is_refused_by_name(ask, x):
    given = {
        ed.certify: lambda: ed.certify(PROBLEM, x, SOURCE),
        ed.diagnose: lambda: ed.diagnose(SOURCE, PROBLEM, x),
        ed.solve_reference: lambda: ed.solve_reference(PROBLEM, SOURCE, x),
    }
    with pytest.raises(TypeError, match=r"x0? must hold floating-point arrays, got .*; write np\.zeros\(3\)"):
        given[ask]()


def test_a_certificate_needs_a_point():
    with pytest.raises(TypeError, match="x must hold floating-point arrays, got None"):
        ed.certify(PROBLEM, None, SOURCE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": pd.DataFrame({"d": [1.0, 2.0]})}, r"got DataFrame; wrap recorded samples in ed\.SeriesSource"),
        ({"algorithm": ed.sdpp}, r"got function: .*; call it: sdpp\(\)"),
        ({"algorithm": "auto"}, r"got str: 'auto'; take ed\.auto\(problem, source, x0\)"),
        ({"problem": SOURCE}, r"got SeriesSource: .*; write ed\.Problem\(loss, constraints, geometry\)"),
    ],
)
def test_what_is_none_of_ours_is_refused_with_a_remedy(given, message):
    with pytest.raises(TypeError, match=message):
        check_kinds(**given)


@pytest.mark.parametrize("ask", [ed.solve_reference, ed.feasibility, ed.auto], ids=lambda ask: ask.__name__)
def test_arguments_in_the_wrong_order_are_told_apart(ask):
    with pytest.raises(TypeError, match="problem must be of type Problem, got SeriesSource"):
        ask(SOURCE, PROBLEM, np.zeros(2))


def test_what_looks_at_numbers_says_so_under_jit():
    certify = jax.jit(lambda x: ed.certify(PROBLEM, x, SOURCE).estimate)
    for name, call in [
        ("auto", jax.jit(lambda x: ed.auto(PROBLEM, SOURCE, x))),
        ("solve_reference", jax.jit(lambda x: ed.solve_reference(PROBLEM, SOURCE, x).value)),
        ("feasibility", jax.jit(lambda x: ed.feasibility(PROBLEM, SOURCE, x).worst)),
        ("diagnose", jax.jit(lambda x: ed.diagnose(x).ess)),
        ("certify", certify),
    ]:
        with pytest.raises(ValueError, match=rf"{name} looks at numbers, which vmap and jit do not show"):
            call(jnp.zeros(2))
    with pytest.raises(ValueError, match="seeds cannot be traced by vmap or jit: pass all of them at once"):
        jax.vmap(lambda seed: ed.run(ed.sdpp(), PROBLEM, SOURCE, x0=np.zeros(2), seeds=[seed]).x)(jnp.arange(2))


def test_numbers_that_are_python_objects_say_how_to_make_them_numbers():
    with pytest.raises(ValueError, match=r"data\['k'\] holds numbers as Python objects; write \.astype\(float\)"):
        as_arrays("data", pd.DataFrame({"k": pd.Series([1.5, 2], dtype=object)}))


def test_a_box_without_end_is_no_domain():
    with pytest.raises(ValueError, match=r"upper holds inf at index \(0,\); a domain is bounded"):
        ed.Box(np.zeros(1), np.full(1, np.inf))
