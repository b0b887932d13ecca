"""A plain function of samples, from any framework, says what a problem with the same constraints says."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ergodrift as ed
from cases import ar1
from ergodrift.trust.plain import CHUNK

X = np.array([-0.5])
PROBLEM = ed.Problem(
    lambda x, xi: jnp.zeros((), x.dtype), lambda x, xi: jnp.concatenate([x + xi, x - 1 - xi]), ed.Ball(2.0)
)
MARKOV = ed.MarkovSource(ed.MarkovChain([[0.9, 0.1], [0.1, 0.9]]), np.array([[1.0], [-1.0]]))
SERIES = ed.SeriesSource(ar1(0.5, 9_000))


def rows(xi):
    """One row for each sample."""
    return np.concatenate([X + xi, X - 1 - xi], axis=1)


def same(found, wanted):
    """All but the loss, which a function does not have."""
    for name in ("estimate", "lower", "upper"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-12)
    for name in ("verdict", "method", "guarantee", "num_samples", "why"):
        assert getattr(found, name) == getattr(wanted, name)
    assert [w for w in wanted.warnings if "the loss" not in w] == found.warnings
    assert np.isnan([found.loss_estimate, found.loss_lower, found.loss_upper]).all()
    assert "loss" not in str(found).splitlines()[-1]


@pytest.mark.parametrize("method", [None, "batch", "hoeffding", "anytime"])
def test_as_a_problem_on_a_chain_whose_law_is_known(method):
    found = ed.certify(rows, MARKOV, method=method, num_samples=2_000)
    same(found, ed.certify(PROBLEM, X, MARKOV, method=method, num_samples=2_000))


def test_as_a_problem_on_a_series_longer_than_a_chunk():
    calls = []

    def counted(xi):
        calls.append(len(xi))
        return rows(xi)

    same(ed.certify(counted, source=SERIES), ed.certify(PROBLEM, X, SERIES))
    assert calls == [CHUNK, CHUNK, 9_000 - 2 * CHUNK]
    bounded = ed.certify(lambda xi: np.tanh(xi[:, 0]) - 0.5, SERIES, tau_mix=3, bounds=(-1.5, 0.5), method="hoeffding")
    assert bounded.verdict == ["satisfied"]


def test_a_monitor_of_a_function_and_its_file(tmp_path):
    plain, monitor = ed.Monitor(rows), ed.Monitor(PROBLEM, X)
    samples = np.asarray(SERIES.data)
    for part in (samples[:700], samples[700:1500]):
        same(plain.update(part), monitor.update(part))
    plain.save(tmp_path / "plain")
    again = ed.Monitor.load(tmp_path / "plain", rows)
    same(again.update(samples[1500:2500]), monitor.update(samples[1500:2500]))
    with pytest.raises(ValueError, match="watched another problem: of its first sample"):
        ed.Monitor.load(tmp_path / "plain", lambda xi: 2 * rows(xi))
    with pytest.raises(ValueError, match="samples have shapes"):
        again.update(np.zeros((5, 2)))


def test_tensors_are_taken_as_they_are():
    @dataclasses.dataclass
    class Tensor:  # as PyTorch has it, without PyTorch
        values: np.ndarray
        attached: bool = True

        def detach(self):
            return dataclasses.replace(self, attached=False)

        def cpu(self):
            assert not self.attached
            return self.values

    same(ed.certify(lambda xi: Tensor(rows(xi)), SERIES), ed.certify(PROBLEM, X, SERIES))
    in_jax = ed.certify(lambda xi: jnp.asarray(rows(xi)), MARKOV, num_samples=2_000)
    np.testing.assert_allclose(in_jax.upper, ed.certify(rows, MARKOV, num_samples=2_000).upper, rtol=1e-6)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"one row for each sample: \(4096,\) or \(4096, m\) .* got shape \(1,\)"):
        ed.certify(lambda xi: np.mean(xi, axis=0), SERIES)
    with pytest.raises(TypeError, match="problem must be a Problem, or a function of samples; got float"):
        ed.certify(0.5, SERIES)
    with pytest.raises(TypeError, match="a function of samples has no point x"):
        ed.certify(rows, X, SERIES)
    with pytest.raises(TypeError, match="a function of samples has no point x"):
        ed.Monitor(rows, X)
    with pytest.raises(TypeError, match="source must be a Source such as SeriesSource"):
        ed.certify(rows)
    with pytest.raises(TypeError, match="source must be a Source"):
        ed.certify(PROBLEM, X)
    with pytest.raises(ValueError, match="constraints along the path holds nan"):
        ed.certify(lambda xi: np.where(xi > 2, np.nan, xi), SERIES)
