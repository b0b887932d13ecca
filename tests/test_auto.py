"""What `auto` chooses, from states, memory, mixing and the data of a series, and how it says why."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from cases import ar1

CHAIN = ed.MarkovChain(0.7 * np.eye(3) + 0.1)
PROBLEM = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.5 + xi[:1], ed.Ball(1.0))
MARKOV = ed.MarkovSource(CHAIN, np.arange(3.0)[:, None])
SHORT = ed.SeriesSource(np.arange(9.0)[:, None])
SLOW = ed.MarkovSource(ed.MarkovChain(0.99 * np.eye(2) + 0.005), np.arange(2.0)[:, None])


def series(lam: float, samples: int) -> ed.SeriesSource:
    return ed.SeriesSource(ar1(lam, samples))


@pytest.mark.x64("its digits are those of float64")
@pytest.mark.parametrize(
    ("source", "options", "name", "word"),
    [
        (MARKOV, {}, "RDPP", "3 states"),
        (MARKOV, {"num_samples": 20}, "EDPP-t", f"in 20 samples and the chain mixes in {CHAIN.mixing_time()}"),
        (SLOW, {"num_samples": 19}, "EDPP-t", "2 states are too many to remember in 19 samples"),
        (ed.IIDSource(np.ones((200_000, 1))), {}, "DPP-t", "200,000 states are too many"),
        (ed.IIDSource(np.ones((200_000, 1))), {"x0": np.zeros(1)}, "RDPP", "200,000 states come back"),
        (ed.IIDSource(np.ones((2000, 1))), {"x0": np.zeros(1), "seeds": 50_000}, "DPP-t", "(3.0 GiB) and the samples"),
        (SHORT, {}, "WDPP", "9 samples of a series are too few"),
        (series(0.0, 2000), {}, "DPP-t", "next to independent"),
        (series(0.98, 3000), {}, "EDPP-t", "behaves like a mixing time of"),
        (series(0.98, 20_000), {}, "WDPP", "20,000 samples are enough to do without it"),
        (series(0.98, 20_000), {"num_samples": 3000}, "EDPP-t", "behaves like"),
        (ed.SeriesSource(np.cumsum(ar1(0.0, 2000), axis=0)), {}, "WDPP", "stays correlated"),
        (ed.SeriesSource(np.ones((500, 1))), {}, "DPP-t", "independent"),
        (ed.Zip(SHORT, MARKOV), {}, "EDPP-t", f"mixes in {CHAIN.mixing_time()}"),
        (ed.Zip(SHORT, ed.IIDSource(np.ones((2, 1)))), {}, "DPP-t", "independent"),
        (ed.Zip(SHORT, SHORT), {}, "ADPP", "nothing is known"),
    ],
)
def test_the_choice_and_its_reason(source, options, name, word):
    chosen = ed.auto(PROBLEM, source, **options)
    assert chosen.name == name
    assert chosen.reason.startswith(f"{name}, because ")
    assert word in chosen.reason
    assert chosen.reason.endswith(".")


def test_a_series_is_asked_through_the_functions_where_a_point_is_given():
    """The slow column is one that neither the loss nor the constraint reads."""
    data = {"read": ar1(0.0, 3000), "ignored": ar1(0.98, 3000)}
    problem = ed.Problem(
        lambda x, xi: jnp.sum((x - xi["read"]) ** 2), lambda x, xi: x[:1] - 0.5 + xi["read"][:1], ed.Ball(1.0)
    )
    source = ed.SeriesSource(data)
    assert ed.auto(problem, source).name == "EDPP-t"
    assert ed.auto(problem, source, x0=np.zeros(1)).name == "DPP-t"


def test_a_linear_model_needs_less_memory_than_its_planes():
    """30 states with d = 3,000: planes of 10,000 seeds would take 14 GiB, a number a row and one more 5 MB."""
    rng = np.random.default_rng(0)
    model = ed.LinearModel("squared", ed.Ball(1.0))
    data = model.data(list(rng.normal(size=(30, 1, 3000))), normals=rng.normal(size=(30, 1, 3000)), limits=[1.0])
    source, x0 = ed.IIDSource(data), np.zeros(3000)
    plain = ed.Problem(model.loss, model.constraints, model.geometry)
    assert ed.auto(model, source, x0=x0, seeds=10_000).name == "RDPP"
    assert ed.auto(plain, source, x0=x0, seeds=10_000).name == "DPP-t"


def test_what_is_refused():
    with pytest.raises(TypeError, match="source must be of type Source, got list"):
        ed.auto(PROBLEM, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seeds"):
        ed.auto(PROBLEM, MARKOV, seeds=0)
    with pytest.raises(ValueError, match="x0 lies outside"):
        ed.auto(PROBLEM, MARKOV, x0=np.full(1, 3.0))
