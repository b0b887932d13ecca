"""A learner: samples handed over as they come, in chunks or one by one; faults, what it refuses, what it watches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ergodrift as ed
from ergodrift.engine import intake
from ergodrift.engine import learner as module
from learning import ALGORITHMS, DATA, MORE, PROBLEM, RNG, ROWS, X0, certificate, fed, loss, one, part


@pytest.fixture(scope="module")
def whole():
    return ed.run(ed.sdpp(), PROBLEM, ed.SeriesSource(DATA), x0=X0)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, ROWS), max_size=20))
def test_chunks_give_the_numbers_of_a_run_bit_for_bit(whole, places):
    learner = fed(ed.Learner(ed.sdpp(), PROBLEM, X0), places)
    np.testing.assert_array_equal(learner.solution, whole.solution[0])
    np.testing.assert_array_equal(learner.x, whole.x[0, -1])
    np.testing.assert_array_equal(learner.queue, whole.queue[0, -1])
    assert learner.samples_seen == ROWS


def agrees_with_run(algorithm, x0=X0):
    run = ed.run(algorithm, PROBLEM, ed.SeriesSource(DATA), x0=x0, seeds=[5])
    learner = fed(ed.Learner(algorithm, PROBLEM, x0, seed=5), [700, 701])
    assert learner.x.dtype == run.x.dtype
    np.testing.assert_array_equal(learner.solution, run.solution[0])
    np.testing.assert_array_equal(learner.queue, run.queue[0, -1])


@pytest.mark.parametrize("name", ["EDPP-t", "MDPP", "WDPP"])
def test_so_they_do_with_other_algorithms(name):
    agrees_with_run(ALGORITHMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in {**ALGORITHMS, **MORE} if name not in ("EDPP-t", "MDPP", "WDPP")])
def test_so_they_do_with_all_algorithms(name):
    agrees_with_run({**ALGORITHMS, **MORE}[name])


def test_so_they_do_in_single_precision_whatever_jax_is_set_to(tmp_path):
    agrees_with_run(ed.edpp(2.0), X0.astype(np.float32))
    learner = fed(ed.Learner(ed.edpp(2.0), PROBLEM, X0.astype(np.float32)), [], 0, 500)
    learner.save(tmp_path / "learner")
    assert ed.Learner.load(tmp_path / "learner", PROBLEM).x.dtype == np.float32


def test_what_auto_chose_from_a_record_learns_on():
    chosen = [
        ed.auto(PROBLEM, ed.SeriesSource(part(0, 500)), X0),
        ed.auto(PROBLEM, ed.StreamSource([part(0, 500)]), X0),
    ]
    learners = [fed(ed.Learner(algorithm, PROBLEM, X0), [1200], 500) for algorithm in chosen]
    assert chosen[0].reason
    np.testing.assert_array_equal(learners[0].solution, learners[1].solution)


@pytest.mark.parametrize("name", ["EDPP-t", "MDPP", "SDPP"])
def test_single_samples_agree_to_rounding_and_mix_with_chunks(name):
    run = ed.run(ALGORITHMS[name], PROBLEM, ed.SeriesSource(DATA), x0=X0, num_samples=600)
    learner = ed.Learner(ALGORITHMS[name], PROBLEM, X0)
    for row in range(150):  # over two ends of blocks
        learner.learn(one(row))
    fed(learner, [301], 150, 500)
    for row in range(500, 600):
        learner.learn(one(row))
    wide = learner.x.dtype == np.float64
    for found, wanted in (
        (learner.solution, run.solution[0]),
        (learner.x, run.x[0, -1]),
        (learner.queue, run.queue[0, -1]),
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-10 if wide else 1e-3, atol=1e-12 if wide else 1e-4)


def test_tall_samples():
    tall = RNG.normal(size=(300, 40, 2))
    problem = ed.Problem(lambda x, xi: jnp.mean((xi @ x - 1) ** 2), lambda x, xi: x[:1] - 0.2, ed.Ball(1.0))
    learner = ed.Learner(ed.sdpp(), problem, np.zeros(2), example=tall[0])
    learner.learn(tall[:100])
    learner.learn(tall[100:])
    run = ed.run(ed.sdpp(), problem, ed.SeriesSource(tall), x0=np.zeros(2))
    np.testing.assert_array_equal(learner.solution, run.solution[0])


def test_history_is_bounded_and_evenly_spread():
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0, history=10)
    for row in range(0, ROWS, 5):
        learner.learn(part(row, row + 5))
        assert row == 0 or len(learner.history.samples) <= 21
    history = learner.history
    assert len(history.samples) >= 10
    assert history.samples[-1] == ROWS
    gaps = np.diff(history.samples[:-1])
    assert gaps.max() <= 2 * gaps.min()
    run = ed.run(ed.edpp(2.0), PROBLEM, ed.SeriesSource(DATA), x0=X0, record=history.samples)
    for name in ("x", "x_mean", "queue", "loss_sum", "constraint_sum", "rounds"):
        np.testing.assert_array_equal(getattr(history, name), getattr(run, name), err_msg=name)


def test_before_the_first_sample():
    learner = ed.Learner(ed.sdpp(), PROBLEM, X0)
    np.testing.assert_array_equal(learner.solution, X0)
    np.testing.assert_array_equal(learner.x, X0)
    for ask in (lambda: learner.queue, lambda: learner.history, lambda: learner.save("nowhere")):
        with pytest.raises(ValueError, match=r"no samples|before the first sample"):
            ask()
    assert ed.Learner(ed.sdpp(), PROBLEM, X0, example=one(0)).queue.tolist() == [0, 0]


def test_nothing_may_come():
    learner = ed.Learner(ed.sdpp(), PROBLEM, X0)
    learner.learn([])
    fed(learner, [])
    before = learner.solution
    learner.learn([], note={"polled": 1})
    learner.learn(part(0, 0))
    assert learner.samples_seen == ROWS
    assert learner.note == {"polled": 1}
    np.testing.assert_array_equal(learner.solution, before)


def test_what_one_sample_is():
    """Read off the first call where the functions leave no doubt, asked for where they do."""
    problem = ed.Problem(lambda x, xi: jnp.sum((x - xi) ** 2), lambda x, xi: x[:1] - 0.3, ed.Ball(2.0))
    with pytest.raises(ValueError, match=r"may be one sample or several.*example="):
        ed.Learner(ed.sdpp(), problem, np.zeros(2)).learn(np.ones(2))
    with pytest.raises(ValueError, match=r"may be one sample or several.*example="):
        ed.Learner(ed.sdpp(), problem, np.zeros(2)).learn([1.0, 1.0])
    learner = ed.Learner(ed.sdpp(), problem, np.zeros(2), example=np.ones(2))
    learner.learn(np.ones((5, 2)))
    learner.learn(np.ones(2))
    assert learner.samples_seen == 6
    first = ed.Learner(ed.sdpp(), PROBLEM, X0)
    first.learn(one(0))
    assert first.samples_seen == 1
    with pytest.raises(ValueError, match=r"loss\(x, xi\) fails"):
        ed.Learner(ed.sdpp(), PROBLEM, X0).learn({"a": np.ones((4, 7)), "b": np.ones(4), "n": np.ones(4)})


@pytest.mark.parametrize("kind", ["table", "fields", "dicts"])
def test_a_table_is_rows_where_it_could_be_one_sample_too(kind):
    pandas = pytest.importorskip("pandas")
    problem = ed.Problem(
        lambda x, xi: x[0], lambda x, xi: jnp.maximum(xi["d"] - x, 0.0) - 1.0, ed.Box(np.zeros(1), np.full(1, 9.0))
    )
    table = pandas.DataFrame({"d": RNG.uniform(0, 5, 64)})
    rows = {"table": table, "fields": table.to_records(index=False).view(np.ndarray), "dicts": table.to_dict("records")}
    learner = ed.Learner(ed.sdpp(), problem, np.zeros(1))
    learner.learn(rows[kind])
    assert learner.samples_seen == 64
    np.testing.assert_array_equal(
        learner.solution, ed.run(ed.sdpp(), problem, ed.SeriesSource(table), x0=np.zeros(1)).solution[0]
    )


def test_samples_of_many_kinds():
    pandas = pytest.importorskip("pandas")
    problem = ed.Problem(lambda x, xi: (xi["a"] * x[0] - xi["b"]) ** 2, lambda x, xi: x - 0.3, ed.Box(-1.0, 1.0))
    table = pandas.DataFrame({"a": DATA["a"][:, 0], "b": DATA["b"]})
    learners = [ed.Learner(ed.sdpp(), problem, np.zeros(1)) for _ in range(4)]
    learners[0].learn(table[:200])
    learners[1].learn({"a": table["a"][:200].tolist(), "b": table["b"][:200].to_numpy(np.float64)})
    learners[2].learn({"a": jnp.asarray(table["a"][:200].to_numpy()), "b": table["b"][:200]})
    learners[3].learn(table[:150])
    for row in range(150, 200):
        learners[3].learn({"a": float(table["a"][row]), "b": table["b"][row]})
    for learner in learners[1:]:
        np.testing.assert_allclose(learner.solution, learners[0].solution, rtol=1e-5)


PAIRS = ed.Problem(lambda x, xi: (xi["a"] * x[0] - xi["b"]) ** 2, lambda x, xi: x - 0.3, ed.Box(-1.0, 1.0))
POINTS = ed.Problem(lambda x, xi: (xi[0] @ x - xi[1]) ** 2, lambda x, xi: x[:1] - 0.3, ed.Ball(1.0))


def test_rows_of_tables_come_one_by_one_and_in_lists():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": DATA["a"][:70, 0], "b": DATA["b"][:70]})
    chunk = ed.Learner(ed.sdpp(), PAIRS, np.zeros(1))
    chunk.learn(table)
    dicts = ed.Learner(ed.sdpp(), PAIRS, np.zeros(1))
    dicts.learn(table.to_dict("records"))  # as JSON lines come
    np.testing.assert_array_equal(dicts.solution, chunk.solution)
    ways = {
        "series": [row for _, row in table.iterrows()],
        "named tuples": list(table.itertuples(index=False)),
        "records": list(table.to_records(index=False)),
        "dicts": table.to_dict("records"),
    }
    for name, rows in ways.items():
        learner = ed.Learner(ed.sdpp(), PAIRS, np.zeros(1))  # the first call says what a sample is
        for row in rows:
            learner.learn(row)
        assert learner.samples_seen == 70, name
        np.testing.assert_allclose(learner.solution, chunk.solution, rtol=1e-5, err_msg=name)
    mixed = pandas.DataFrame({"a": DATA["a"][:9, 0], "b": np.arange(9)})
    counts = ed.Problem(
        lambda x, xi: (xi["a"] - jnp.where(xi["b"] > 2, x[0], 0)) ** 2, PAIRS.constraints, PAIRS.geometry
    )
    learner = ed.Learner(ed.sdpp(), counts, np.zeros(1))
    learner.learn(mixed)
    learner.learn(mixed.iloc[3])  # of which pandas has made floats
    assert learner.samples_seen == 10
    with pytest.raises(ValueError, match="samples: row 1 has a, row 0 has a, b"):
        chunk.learn([{"a": 1.0, "b": 2.0}, {"a": 1.0}])


def test_record_batches_and_tensors():
    arrow, torch = pytest.importorskip("pyarrow"), pytest.importorskip("torch")
    features, targets = DATA["a"][:70].astype(np.float32), DATA["b"][:70].astype(np.float32)
    batch = arrow.record_batch({"a": features[:, 0], "b": targets})
    learners = [ed.Learner(ed.sdpp(), PAIRS, np.zeros(1)) for _ in range(2)]
    learners[0].learn(batch)
    learners[1].learn({"a": features[:, 0], "b": targets})
    np.testing.assert_array_equal(learners[0].solution, learners[1].solution)
    tensors = torch.tensor(features, requires_grad=True), torch.tensor(targets)
    forms = [(features, targets), tensors, list(tensors), (features.tolist(), targets.tolist())]
    for form in forms:
        learner = ed.Learner(ed.sdpp(), POINTS, np.zeros(3))
        learner.learn((features, targets))
        learner.learn(form)  # a DataLoader makes lists of tuples
        learner.learn(type(form)(part[0] for part in form))
        assert learner.samples_seen == 141
        learners.append(learner)
    for learner in learners[3:]:
        np.testing.assert_allclose(learner.solution, learners[2].solution, rtol=1e-5)
    with pytest.raises(ValueError, match=r"samples\[1\] has no value at row 3"):
        learners[2].learn((features, np.ma.masked_array(targets, np.arange(70) == 3)))


@pytest.mark.parametrize("single", [True, False])
def test_arrays_may_be_written_to_again(single):
    """A socket reads into one buffer; what is watched, and what is looked at again after a NaN, come later."""
    wanted, learner = (ed.Learner(ed.edpp(2.0), breaking_at(170), X0, example=one(0)) for _ in range(2))
    for each in (wanted, learner):
        each.watch(np.full(3, 0.1))
    buffer, size = jax.tree.map(np.copy, part(0, 64)), 1 if single else 64

    def learn():
        for row in range(0, 256, size):
            for name, rows in DATA.items():
                buffer[name][:size] = rows[row : row + size]
            learner.learn({name: leaf[0] for name, leaf in buffer.items()} if single else buffer)
        return learner.solution

    with pytest.raises(ed.NonFiniteError, match="sample 171"):
        learn()
    wanted.learn(part(0, 170))
    np.testing.assert_allclose(learner.solution, wanted.solution, rtol=1e-5)
    assert certificate(learner).num_samples == learner.samples_seen == 170  # what was taken back is not judged
    np.testing.assert_allclose(certificate(learner).estimate, certificate(wanted).estimate, rtol=1e-5)
    learner.learn(part(171, 200))
    assert certificate(learner).num_samples == 199


BAD = [
    (lambda: {**part(0, 9), "b": np.where(np.arange(9) == 4, np.nan, 1.0)}, r"\['b'\] holds nan in sample 104 \(row 4"),
    (lambda: {**one(0), "b": np.inf}, r"\['b'\] holds inf in sample 100, as float(32|64); clean"),
    (lambda: {**part(0, 9), "a": np.ones((9, 2))}, r"samples\['a'\] must have shape \(9, 3\), got \(9, 2\)"),
    (lambda: {**part(0, 9), "b": np.ones(8)}, r"samples\['b'\] must have shape \(9,\), got \(8,\)"),
    (lambda: {"a": np.ones((9, 3)), "b": np.ones(9)}, r"hold \['a'\], \['b'\], those before held \['a'\], .*n"),
    (lambda: {**one(0), "n": 2.5}, r"samples\['n'\] must hold int(32|64), as the first sample did, got float64"),
    (lambda: {**one(0), "b": "x"}, r"\['b'\]"),
    (lambda: jax.tree.map(lambda rows: rows[None, :9], DATA), "one sample has"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_samples_are_refused_and_change_nothing(case):
    make, message = BAD[case]
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0)
    learner.learn(part(0, 100))
    before = learner.x
    with pytest.raises((ValueError, TypeError), match=message):
        learner.learn(make())
    assert learner.samples_seen == 100
    np.testing.assert_array_equal(learner.x, before)


def test_a_first_sample_that_is_not_finite_is_no_beginning(tmp_path):
    learner = ed.Learner(ed.edpp(2.0), PROBLEM, X0)
    with pytest.raises(ValueError, match=r"the first sample\['b'\] holds nan"):
        learner.learn({**part(0, 9), "b": np.where(np.arange(9) == 0, np.nan, 1.0)})
    assert learner.samples_seen == 0
    learner.learn(part(0, 100))
    learner.save(tmp_path / "learner")
    assert ed.Learner.load(tmp_path / "learner", PROBLEM).samples_seen == 100


def breaking_at(row):
    """A problem whose loss is not finite for one row."""
    bad = DATA["b"][row]

    def broken(x, xi):
        return jnp.sum(x * xi["b"]) + jnp.where(xi["b"] == bad, jnp.nan, 0.0)

    return ed.Problem(broken, lambda x, xi: x[:1] - 0.1, ed.Ball(2.0))


@pytest.mark.parametrize("single", [False, True])
def test_nan_that_arises_is_located_and_the_learner_stands_before_it(single):
    problem = breaking_at(130)
    learner = ed.Learner(ed.edpp(2.0), problem, X0, example=one(0))

    def learn():
        for row in range(0, 300, 1 if single else 100):
            learner.learn(one(row) if single else part(row, row + 100))
        return learner.solution

    with pytest.raises(ed.NonFiniteError, match=r"loss.*not finite at sample 131"):
        learn()
    assert learner.samples_seen == 130
    good = ed.run(ed.edpp(2.0), problem, ed.SeriesSource(DATA), x0=X0, num_samples=130)
    np.testing.assert_allclose(learner.solution, good.solution[0], rtol=1e-5)
    assert learner.history.samples[-1] == 130
    learner.learn(part(131, 200))  # and it goes on
    assert learner.samples_seen == 199


def test_what_no_learner_can_do():
    with pytest.raises(ValueError, match=r"RDPP remembers which state"):
        ed.Learner(ed.rdpp(), PROBLEM, X0)
    with pytest.raises(TypeError, match="algorithm must be of type Algorithm"):
        ed.Learner("sdpp", PROBLEM, X0)
    learner = ed.Learner(ed.sdpp(), PROBLEM, X0, example=one(0))
    learner._intake.count = module.MOST  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="a learner counts to"):
        learner.learn(one(0))


def cache(function):
    return function._cache_size()


def test_few_compilations_whatever_the_lengths():
    from ergodrift.engine import online

    before = cache(online.take_rows)
    learner = ed.Learner(ed.edpp(3.0), ed.Problem(loss, lambda x, xi: x[:1] - 0.1, ed.Ball(2.0)), X0)
    for length in (1, 2, 3, 50, 70, 200, 999, 1000, 174):
        learner.learn(part(0, length))
    _ = learner.solution
    assert cache(online.take_rows) - before <= len(intake.ROOMS)


# A point that is watched


def steady(count, seed, shift=0.0):
    """AR(1) samples around 0, or around `shift`."""
    noise = np.random.default_rng(seed).normal(size=(count, 2))
    for t in range(1, count):
        noise[t] += 0.5 * noise[t - 1]
    return noise + shift


WATCHED = ed.Problem(lambda x, xi: (x[0] - xi[0]) ** 2, lambda x, xi: x + xi[1] - 1.0, ed.Ball(2.0))


def test_a_watched_point_is_judged_on_samples_before_they_are_learned_from():
    samples = steady(6000, 0)
    learner = ed.Learner(ed.sdpp(), WATCHED, np.zeros(1), example=samples[0])
    assert learner.certificate is learner.drift is learner.watched is None
    learner.learn(samples[:2000])
    point = learner.solution
    learner.watch()
    assert learner.certificate is None
    learner.learn(samples[2000:2700])
    for row in range(2700, 2800):
        learner.learn(samples[row])
    learner.learn(samples[2800:])
    np.testing.assert_array_equal(learner.watched, point)
    alone = ed.Monitor(WATCHED, point).update(samples[2000:])
    assert certificate(learner).num_samples == 4000
    np.testing.assert_allclose(certificate(learner).estimate, alone.estimate, rtol=1e-5)
    assert certificate(learner).verdict == alone.verdict == ["satisfied"]
    assert learner.drift is None


def test_a_law_that_changes_calls_back_once_and_survives_a_restart(tmp_path):
    calls = []
    learner = ed.Learner(ed.sdpp(), WATCHED, np.zeros(1), example=np.zeros(2))
    learner.watch(np.array([0.1]), on_drift=calls.append)
    learner.learn(steady(30_000, 1))
    assert not calls
    learner.save(tmp_path / "learner")
    again = ed.Learner.load(tmp_path / "learner", WATCHED, on_drift=calls.append)
    for one_of in (learner, again):
        for chunk in range(10):
            one_of.learn(steady(1000, 10 + chunk, shift=1.5))
    assert [type(call) for call in calls] == [ed.Drift, ed.Drift]  # one of each
    assert str(calls[0]) == str(calls[1])
    assert calls[0].sample > 30_000
    assert again.drift == learner.drift
    np.testing.assert_array_equal(certificate(again).lower, certificate(learner).lower)


def test_a_callback_that_fails_leaves_everything_in_its_place(tmp_path):
    """Samples are learned from, note and file are written; it is not called again."""
    calls = []

    def fails(drift):
        calls.append(drift)
        raise ConnectionError("nobody answers")

    path = tmp_path / "learner"
    learner = ed.Learner(ed.sdpp(), WATCHED, np.zeros(1), example=np.zeros(2), save_to=path, save_every=1)
    learner.watch(np.array([0.1]), on_drift=fails)
    learner.learn(steady(30_000, 1))

    def learn():
        for chunk in range(10):
            learner.learn(steady(1000, 10 + chunk, shift=1.5), note={"chunk": chunk})

    with pytest.raises(ConnectionError):
        learn()
    again = ed.Learner.load(path, WATCHED, on_drift=calls.append)
    assert again.samples_seen == learner.samples_seen == 31_000 + 1000 * learner.note["chunk"]
    assert again.note == learner.note
    learner.learn(steady(1000, 40))
    assert len(calls) == 1
    again.learn(steady(1000, 40))  # the file was written before it was called, and so it is called by the next life
    assert len(calls) == 2
    assert calls[0] == calls[1] == learner.drift


def test_a_point_that_cannot_be_judged_is_told_and_learning_goes_on(tmp_path):
    problem = ed.Problem(lambda x, xi: -jnp.log(x[0] + xi[0]), lambda x, xi: x - 1.0, ed.Box(-1.0, 1.0))
    learner = ed.Learner(ed.edpp(2.0), problem, np.ones(1), example=np.ones(1))
    learner.watch(np.array([-1.0]))
    learner.learn(np.full((300, 1), 3.0))
    learner.learn(np.full((300, 1), 0.5))  # the logarithm of a negative number, where it is watched
    with pytest.warns(UserWarning, match="cannot be judged after 300 samples: loss along the path"):
        learner.learn(np.full((300, 1), 2.0))
    assert learner.samples_seen == 900
    learner.save(tmp_path / "learner")
    for each in (learner, ed.Learner.load(tmp_path / "learner", problem)):
        with pytest.raises(ValueError, match="watch another one"):
            _ = each.certificate
        each.watch(np.array([1.0]))
        each.learn(np.full((300, 1), 2.0))
        assert certificate(each).num_samples == 300
