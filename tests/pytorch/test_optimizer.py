"""`DriftPlusPenalty`: numbers by hand, those of `ed`, the forms constraints come in, and what a training loop does."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import ergodrift as ed
from ergodrift.methods.scalefree import Distances
from ergodrift.torch import DriftPlusPenalty, multipliers

torch.set_num_threads(1)


def one(start=0.0, rate=0.5, **settings):
    """A number, and plain descent on it."""
    x = nn.Parameter(torch.tensor([start], dtype=torch.float64))
    return x, DriftPlusPenalty(torch.optim.SGD([x], lr=rate), 1, **settings)


def turn(opt, loss, constraints, **more):
    opt.zero_grad()
    opt.backward(loss, constraints, **more)
    opt.step()


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch(t, size=8):
    rng = torch.Generator().manual_seed(t)
    X = torch.randn(size, 3, generator=rng)
    return X, X.sum(-1, keepdim=True)


def asked(net, t):
    """A loss that wants large outputs, and constraints that do not."""
    X, y = batch(t)
    out = net(X)
    return ((out - y) ** 2).mean(), torch.stack([out.square().mean() - 0.5, out.mean() - 0.1])


def train(net, opt, rounds, start=0):
    for t in range(start, start + rounds):
        turn(opt, *asked(net, t))
    return torch.cat([p.detach().flatten() for p in net.parameters()])


# Numbers.


def test_two_rounds_of_the_scale_free_form_by_hand():
    """f = 2 x and g = 1 - x: |f'| / |g'| = 2. Round 1, E = 1: lambda = 0.1 * 2 * 1 / sqrt(1). Round 2 at x = -1, g = 2:
    E = 1 + 2/3 (4 - 1) = 3, the mean of lambda is 0.2 * 2/3, so that the scale stays 2."""
    x, opt = one()
    turn(opt, 2 * x.sum(), 1 - x)
    assert x.item() == -1.0  # 0 - 0.5 * 2
    assert opt.multipliers.item() == pytest.approx(0.2, rel=1e-14)
    turn(opt, 2 * x.sum(), 1 - x)
    assert x.item() == pytest.approx(-1 - 0.5 * (2 - 0.2), rel=1e-14)
    assert opt.multipliers.item() == pytest.approx(0.2 + 0.1 * 2 / (2 * 3) ** 0.5 * 2, rel=1e-14)


def test_constraints_that_are_violated_together_share_one_stride():
    """As above in round 1, with two that are violated and one that is not: 0.1 * 2 / 2 each; an equality is one."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.5), 3)
    turn(opt, 2 * x.sum(), torch.stack([1 - x.sum(), 1 - x.sum(), x.sum() - 5]))
    np.testing.assert_allclose(opt.multipliers.tolist(), [0.1, 0.1, 0], rtol=1e-14)
    x, opt = one(equalities=[0])
    turn(opt, 2 * x.sum(), 1 - x)
    assert opt.multipliers.item() == pytest.approx(0.2, rel=1e-14)


def test_two_rounds_of_the_paper_s_queue_by_hand():
    """V = 4. Round 1: x goes from 0 to -1, and Q = 1 + (-1)(-1) = 2. Round 2: the step is 0.5 (2 - 2/4) = 0.75, g = 2,
    and Q = 2 + 2 + 0.75."""
    x, opt = one(penalty=4.0)
    turn(opt, 2 * x.sum(), 1 - x)
    assert (x.item(), opt.queue.item(), opt.multipliers.item()) == (-1.0, 2.0, 0.5)
    turn(opt, 2 * x.sum(), 1 - x)
    assert (x.item(), opt.queue.item()) == (-1.75, 4.75)
    x, opt = one(penalty=4.0, displacement=False)
    turn(opt, 2 * x.sum(), 1 - x)
    assert opt.queue.item() == 1.0


@pytest.mark.parametrize(
    ("algorithm", "penalty", "proximity"),
    [
        (ed.dpp(), lambda t: t**0.5, lambda t: t),
        (ed.dpp(horizon=1000), 1000**0.5, lambda t: 1000),
        (ed.edpp(7.0, beta=0.4), lambda t: (7 * t) ** 0.4, lambda t: 7 * t),
    ],
    ids=["DPP-t", "DPP-T", "EDPP-t"],
)
def test_sgd_with_a_penalty_is_the_paper_s_algorithm(algorithm, penalty, proximity, pytestconfig):
    """x - (V df + Q dg) / (2 alpha), on a convex problem, over 1,000 rounds; the ball is never left."""
    wide = pytestconfig.getoption("x64") == "on"
    kind = np.float64 if wide else np.float32
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(1000, 3)).astype(kind) + np.array([1.0, 0.5, -0.5], kind)
    problem = ed.Problem(
        lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: (x * xi).sum()[None] * np.array([1, -1], kind) - 0.3,
        ed.Ball(1e3),
    )  # fmt: skip
    found = ed.run(algorithm, problem, ed.SeriesSource(samples), x0=np.zeros(3, kind), seeds=1, record=[1000])
    x = nn.Parameter(torch.zeros(3, dtype=torch.from_numpy(samples).dtype))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=1.0), 2, penalty=penalty)
    value = penalty if callable(penalty) else lambda t: penalty
    rate = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: value(t + 1) / (2 * proximity(t + 1)))
    for xi in torch.from_numpy(samples):
        turn(opt, ((x - xi) ** 2).sum(), (x * xi).sum() * torch.tensor([1, -1]) - 0.3)
        rate.step()
    tolerance = 1e-12 if wide else 1e-6
    np.testing.assert_allclose(x.detach().numpy(), np.asarray(found.x[0, -1]), rtol=0, atol=tolerance)
    scale = max(np.abs(np.asarray(found.queue[0, -1])).max(), 1)
    np.testing.assert_allclose(opt.queue.numpy(), np.asarray(found.queue[0, -1]), rtol=0, atol=tolerance * scale)


@pytest.mark.x64("it compares to 12 digits")
def test_multipliers_are_those_of_sdpp_where_gradients_are_measured_in_every_round(monkeypatch):
    """Along the points of SGD, `ed`'s own schedule is shown each round and says how multipliers move."""
    import jax.numpy as jnp

    def all_of_them(self):
        return list(range(len(self.constraint_jac)))

    monkeypatch.setattr(multipliers.ScaleFree, "due", all_of_them)
    samples = np.random.default_rng(1).normal(size=(300, 3)) + 1
    problem = ed.Problem(
        lambda x, xi: ((x - xi) ** 2).sum(), lambda x, xi: jnp.stack([(x * xi).sum() - 0.3, 5 * x[0] - 1]), ed.Ball(1e3)
    )
    schedule = Distances(dual_stride=multipliers.DUAL_STRIDE, first=1.0)
    state = schedule.init(problem.geometry, jnp.zeros(3), 2)
    queue = jnp.zeros(2)
    x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.02), 2)
    for t, xi in enumerate(samples):
        feedback = problem.feedback(jnp.asarray(x.detach().numpy()), xi)
        told = (jnp.asarray(t + 1), feedback, jnp.asarray(x.detach().numpy()), queue, problem.geometry)
        state = schedule.absorb(state, *told)
        state, weights = schedule.weights(state, jnp.asarray(t + 1), ed.Sizes(0.0, 0.0, 0.0, None))
        shared = max(int((feedback.constraints > 0).sum()), 1)
        queue = jnp.maximum(weights.kept * queue + weights.rates / shared * feedback.constraints, 0)
        point = torch.from_numpy(xi)
        turn(opt, ((x - point) ** 2).sum(), torch.stack([(x * point).sum() - 0.3, 5 * x[0] - 1]))
        np.testing.assert_allclose(opt.multipliers.numpy(), queue, rtol=1e-12, atol=1e-14)
    assert (opt.multipliers > 0.1).any()


def test_units_of_loss_and_constraints_change_nothing():
    def point(loss_unit, constraint_unit):
        x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        opt = DriftPlusPenalty(torch.optim.Adam([x], lr=0.05, eps=0), 2)
        for t in range(200):
            noise = torch.randn(2, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
            loss = ((x - 1 - noise) ** 2).sum()
            turn(opt, loss_unit * loss, torch.stack([constraint_unit * (x.sum() - 1), x[0] - 0.2]))
        return x.detach(), opt.multipliers

    (x, price), (y, other) = point(1.0, 1.0), point(3e5, 2e-4)
    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(other / 3e5 * torch.tensor([2e-4, 1], dtype=torch.float64), price)
    assert (price > 0).all()


def test_it_solves_a_problem_whose_answer_is_known():
    """Nearest point to (2, 1) with x_1 + x_2 = 1 and x_2 >= 0: (1, 0), with multipliers 2 and 0."""
    x = nn.Parameter(torch.zeros(2))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.05), 2, equalities=["sum"])
    for _ in range(2000):
        turn(opt, ((x - torch.tensor([2.0, 1.0])) ** 2).sum(), {"positive": -x[1], "sum": x.sum() - 1})
    torch.testing.assert_close(x.detach(), torch.tensor([1.0, 0.0]), rtol=0, atol=2e-3)
    torch.testing.assert_close(opt.multipliers, torch.tensor([0.0, 2.0]), rtol=0, atol=2e-2)
    assert opt.names == ["positive", "sum"]
    assert opt.queue.shape == (3,)


def test_an_equality_has_a_multiplier_of_either_sign():
    for goal, price in ((0.0, -2.0), (2.0, 2.0)):  # wants x = goal, and must be 1: the price is 2 (goal - 1)
        x, opt = one(rate=0.05, equalities=[0])
        for _ in range(2000):
            turn(opt, ((x - goal) ** 2).sum(), x - 1)
        assert x.item() == pytest.approx(1, abs=2e-3)
        assert opt.multipliers.item() == pytest.approx(price, abs=2e-2)


# The forms of constraints.


def test_all_forms_say_the_same():
    def after(form):
        net = network()
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
        for t in range(5):
            X, y = batch(t)
            out = net(X).squeeze(-1)
            turn(opt, ((out - y.squeeze(-1)) ** 2).mean(), form(out.square() - 0.1, out - 0.1))
        return torch.cat([opt.multipliers, *(p.detach().flatten() for p in net.parameters())])

    forms = [
        lambda a, b: torch.stack([a.mean(), b.mean()]),
        lambda a, b: torch.stack([a, b], dim=-1),
        lambda a, b: [a.mean(), b],
        lambda a, b: (a, b.mean()),
        lambda a, b: {"size": a, "mean": b.mean()},
    ]
    first, *others = map(after, forms)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-7)


def test_one_constraint_may_be_a_number_or_a_number_for_each_sample():
    results = []
    for form in (lambda g: g.mean(), lambda g: g, lambda g: g[:, None], lambda g: g.mean()[None]):
        x, opt = one()
        turn(opt, 2 * x.sum(), form(1 - x * torch.ones(4, dtype=torch.float64)))
        results.append(opt.multipliers.item())
    assert results == pytest.approx([0.2] * 4)


def test_a_dict_may_come_in_any_order_after_the_first():
    x = nn.Parameter(torch.zeros(2))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 2)
    turn(opt, (x - 1).square().sum(), {"a": x[0] + 1, "b": x[1] - 1})
    turn(opt, (x - 1).square().sum(), {"b": x[1] - 1, "a": x[0] + 1})
    assert opt.multipliers[0] > 0
    assert opt.multipliers[1] == 0
    with pytest.raises(ValueError, match=r"names \['a', 'b'\], got \['a', 'c'\]"):
        opt.backward((x - 1).square().sum(), {"a": x[0], "c": x[1]})


def test_a_proxy_steers_and_the_true_value_moves_the_multipliers():
    """A count has no gradient: the proxy's is taken. The multiplier goes by the count, and so by its size alone."""
    x, opt = one()
    turn(opt, 2 * x.sum(), (x < 0.5).double(), proxy=1 - x)
    assert opt.multipliers.item() == pytest.approx(0.2)
    turn(opt, 2 * x.sum(), (x < 0.5).double(), proxy=1 - x)
    assert x.item() == pytest.approx(-1 - 0.5 * (2 - 0.2))
    assert opt.multipliers.item() == pytest.approx(0.2 + 0.2 / 2**0.5)


def test_beside_a_proxy_true_values_may_be_plain_numbers():
    """Rates that have been counted: what tensors say, numbers say too, one or several."""
    results = []
    for form in (lambda g: torch.tensor([g, -1.0]), lambda g: [g, -1], lambda g: (np.float32(g), np.float64(-1))):
        net = network()
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
        for t in range(3):
            loss, soft = asked(net, t)
            turn(opt, loss, form(0.5), proxy=soft)
        results.append(opt.multipliers)
    assert results[0][0] > 0
    for other in results[1:]:
        assert torch.equal(other, results[0])
    x, opt = one()
    turn(opt, 2 * x.sum(), 1, proxy=1 - x)
    assert opt.multipliers.item() == pytest.approx(0.2)


def test_a_complex_parameter_is_two_real_ones():
    """The nearest point to 1 + i with a real part of 1/2 at most, and both forms of the multiplier by hand."""
    for penalty, price in ((None, 1.0), (20.0, 1.0)):
        z = nn.Parameter(torch.zeros(1, dtype=torch.complex128))
        opt = DriftPlusPenalty(torch.optim.SGD([z], lr=0.05), 1, penalty=penalty)
        for _ in range(1500):
            turn(opt, (z - (1 + 1j)).abs().square().sum(), z.real.sum() - 0.5)
        assert z.item() == pytest.approx(0.5 + 1j, abs=2e-3)
        assert opt.multipliers.item() == pytest.approx(price, abs=2e-2)
        assert opt.multipliers.dtype == torch.float64


def test_where_no_gradients_are_made_backward_makes_them():
    """As loss.backward() does."""
    net = network()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
    loss, constraints = asked(net, 0)
    with torch.no_grad():
        turn(opt, loss, list(constraints))
    assert any(p.grad.abs().sum() > 0 for p in net.parameters())


def test_no_constraints_are_the_optimiser_alone():
    plain, ours = network(), network()
    alone = torch.optim.Adam(plain.parameters(), lr=0.01)
    opt = DriftPlusPenalty(torch.optim.Adam(ours.parameters(), lr=0.01), 0)
    for t in range(5):
        alone.zero_grad()
        asked(plain, t)[0].backward()
        alone.step()
        for none in ((), {}, torch.zeros(0)):
            opt.zero_grad()
            opt.backward(asked(ours, t)[0], none)
        opt.step()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)
    assert opt.multipliers.shape == (0,)


def test_while_constraints_are_kept_it_is_the_optimiser_alone():
    plain, ours = network(), network()
    alone = torch.optim.AdamW(plain.parameters(), lr=0.01)
    opt = DriftPlusPenalty(torch.optim.AdamW(ours.parameters(), lr=0.01), 1)
    for t in range(30):
        alone.zero_grad()
        asked(plain, t)[0].backward()
        alone.step()
        loss, constraints = asked(ours, t)
        turn(opt, loss, constraints[:1] - 100)
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


# What is refused.


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (lambda x: torch.stack([x, x, x]), r"shape \(2,\) or \(batch, 2\)"),
        (lambda x: x.sum(), r"got \(\)"),
        (lambda x: torch.ones(2, 3, 2) * x, r"got \(2, 3, 2\)"),
        (lambda x: [x.sum()], "must hold 2 values"),
        (lambda x: [x.sum(), torch.ones(2, 2) * x], r"constraints\[1\] must have shape \(\) or \(batch,\)"),
        (
            lambda x: [x.sum(), x.sum().item()],
            r"constraints\[1\] must be a tensor, got 0.0.*give 0 \* loss",
        ),
        (lambda x: {"a": x.sum(), "b": x.sum().detach()}, r"constraints\['b'\] is detached.*proxy=.*give 0 \* loss"),
        (lambda x: torch.zeros(2), "constraints is detached"),
        (lambda x: None, "constraints must be a tensor"),
        (lambda x: 0.5, "constraints must be a tensor"),
        (lambda x: {x.sum(), 2 * x.sum()}, "a set, which has no order"),
        (lambda x: [x.sum() + float("nan"), x.sum()], "constraint 0 is nan"),
        (lambda x: {"a": x.sum(), "b": x.sum() / 0 - torch.inf}, "constraint 'b' is"),
        (lambda x: x.expand(0, 2), "constraint 0 is nan"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_touched(constraints, message):
    x = nn.Parameter(torch.zeros(1))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 2)
    with pytest.raises((ValueError, TypeError), match=message):
        opt.backward((x - 1).square().sum(), constraints(x))
    assert x.grad is None
    assert opt.t == 0
    with pytest.raises(RuntimeError, match=r"without backward\(\)"):
        opt.step()
    turn(opt, (x - 1).square().sum(), [x.sum(), x.sum()])  # and it goes on
    assert opt.t == 1


def test_a_loss_that_is_not_a_number_is_refused_before_it_spreads():
    x, opt = one()
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"loss is {bad}, and so would be all parameters"):
            opt.backward(2 * x.sum() + bad, 1 - x)
    assert x.grad is None
    turn(opt, 2 * x.sum(), 1 - x)
    assert opt.t == 1


def test_settings_are_checked():
    x = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([x], lr=0.1)
    for wrong, message in [
        ({"num_constraints": -1}, "num_constraints must be a whole number >= 0"),
        ({"num_constraints": 1.5}, "num_constraints"),
        ({"every": 0}, "every must be"),
        ({"penalty": 0.0}, "penalty must be > 0"),
        ({"displacement": True}, "goes with penalty"),
        ({"equalities": [1]}, "equalities must be numbers or names"),
        ({"equalities": ["a", "b"]}, "2 equalities, but num_constraints=1"),
    ]:
        with pytest.raises(ValueError, match=message):
            DriftPlusPenalty(sgd, **{"num_constraints": 1, **wrong})
    with pytest.raises(TypeError, match="optimizer must be"):
        DriftPlusPenalty([x], 1)
    with pytest.raises(TypeError, match="optimizer must be"):
        DriftPlusPenalty(DriftPlusPenalty(sgd, 1), 1)
    with pytest.raises(ValueError, match="LBFGS"):
        DriftPlusPenalty(torch.optim.LBFGS([x]), 1)
    with pytest.raises(ValueError, match="maximize=True would climb the constraints too"):
        DriftPlusPenalty(torch.optim.SGD([x], lr=0.1, maximize=True), 1)
    late = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 1)
    late.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "maximize": True})
    with pytest.raises(ValueError, match="maximize=True would climb the constraints too"):
        late.backward(x.sum(), x)
    with pytest.raises(ValueError, match=r"penalty must be > 0, got -1 in round 1"):
        DriftPlusPenalty(sgd, 1, penalty=lambda t: -t).backward(x.sum(), x)
    opt = DriftPlusPenalty(sgd, 1, equalities=["a"])
    with pytest.raises(TypeError, match="must come in a dict"):
        opt.backward(x.sum(), x)
    with pytest.raises(ValueError, match=r"of \[0, 'b'\], got 'a'"):
        opt.backward(x.sum(), {"b": x})
    opt = DriftPlusPenalty(sgd, 1)
    with pytest.raises(ValueError, match="loss is detached"):
        opt.backward(torch.zeros(()), x)
    with pytest.raises(TypeError, match="loss must be a tensor of one number"):
        opt.backward(x * torch.ones(3), x)
    with pytest.raises(ValueError, match="weight must be > 0"):
        opt.backward(x.sum(), x, weight=0.0)
    with pytest.raises(ValueError, match="proxy is detached"):
        opt.backward(x.sum(), x, proxy=x.detach())


def test_sharded_parameters_are_refused():
    """Their gradients would be measured in parts, and multipliers be those of a part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        whole = torch.zeros(4)
        x = nn.Parameter(distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)]))
        with pytest.raises(TypeError, match="parameters are sharded"):
            DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_constraint_without_a_gradient_is_told_of_and_has_no_multiplier():
    x, other = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    opt = DriftPlusPenalty(torch.optim.SGD([x], lr=0.1), 2)
    with pytest.warns(UserWarning, match=r"constraint 0 is violated, and its gradient is 0"):
        turn(opt, (x - 1).square().sum(), torch.cat([other, x + 1]))
    for _ in range(20):
        turn(opt, (x - 1).square().sum(), torch.cat([other, x + 1]))
    assert opt.multipliers[0] == 0
    assert opt.multipliers[1] > 0
    assert other.grad.abs().sum() == 0


def test_a_gradient_that_is_rounding_alone_is_told_of():
    """The mean of a softmax is 1 / k, whatever the network: what its gradient has are the last digits of its terms."""
    net = nn.Sequential(nn.Linear(3, 4))
    X, _ = batch(0)
    flat, steep = net(X).softmax(-1).mean() + 0.25, net(X)[:, 0].mean() + 5
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
    message = "constraint 'flat' is violated, and its gradient is no more than rounding"
    with pytest.warns(UserWarning, match=message) as told:
        opt.backward(net(X).square().mean(), {"steep": steep, "flat": flat})
    assert [warning.filename for warning in told] == [__file__]


def test_a_group_that_comes_late_is_measured_when_it_does():
    """Its gradient is 0 in round 1, and it is looked at again in rounds 2, 4, 8, ..., long before its turn in 10."""
    x, opt = one()
    for t in range(9):
        turn(opt, 2 * x.sum(), (1 - x) if t >= 3 else 0 * x)
    assert opt.multipliers.item() > 0


def test_a_loss_without_a_gradient_leaves_the_multipliers_to_the_constraints():
    """A point that only has to be feasible; and when the loss comes to have one, its scale is the loss's."""
    x, opt = one(rate=0.1)
    for _ in range(100):
        turn(opt, 0 * x.sum(), 1 - x)
    assert x.item() > 0.9
    x, opt = one(rate=0.1, every=1)
    for _ in range(3):
        turn(opt, 0 * x.sum(), 1 - x)
    before = opt.multipliers.item()
    start = x.item()
    turn(opt, 1e-6 * x.sum(), 1 - x)
    assert x.item() == pytest.approx(start - 1e-7, abs=1e-12)  # what multipliers did without a scale is dropped
    assert 0 < opt.multipliers.item() < 1e-5 < before


# Training loops.


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
    ids=["momentum", "foreach", "fused", "rmsprop", "adagrad"],
)
@pytest.mark.parametrize("penalty", [None, 5.0])
def test_any_optimiser_may_be_wrapped_and_a_state_goes_on_as_if_nothing_had_been(make, penalty, tmp_path):
    def fresh():
        net = network()
        return net, DriftPlusPenalty(make(net.parameters()), 2, penalty=penalty)

    net, opt = fresh()
    whole = train(net, opt, 30)
    first, half = fresh()
    train(first, half, 17)
    torch.save({"net": first.state_dict(), "opt": half.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    second, resumed = fresh()
    second.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["opt"])
    assert torch.equal(train(second, resumed, 13, start=17), whole)
    assert torch.equal(resumed.multipliers, opt.multipliers)
    assert resumed.t == 30
    assert opt.multipliers.max() > 0


def test_states_that_do_not_fit_are_refused_and_change_nothing():
    net = network()
    opt = DriftPlusPenalty(torch.optim.Adam(net.parameters()), 2)
    train(net, opt, 3)
    before = copy.deepcopy(opt.state_dict())

    def other(count=2, **settings):
        return DriftPlusPenalty(torch.optim.Adam(network().parameters()), count, **settings).state_dict()

    for state, message in [
        (torch.optim.Adam(net.parameters()).state_dict(), "that of a plain optimiser"),
        (other(3), "another num_constraints: 3, and here it is 2"),
        (other(penalty=1.0), "another form: 'penalty'"),
        (other(equalities=[0]), "equalities"),
    ]:
        with pytest.raises(ValueError, match=message):
            opt.load_state_dict(state)
    after = opt.state_dict()
    assert after["drift_plus_penalty"].keys() == before["drift_plus_penalty"].keys()
    assert torch.equal(after["drift_plus_penalty"]["energy"], before["drift_plus_penalty"]["energy"])
    assert after["state"][0]["step"] == before["state"][0]["step"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_and_pickles_go_on_by_themselves(copied):
    net = network()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.05), 2)
    torch.optim.lr_scheduler.StepLR(opt, 5)
    train(net, opt, 3)
    twin, theirs = copied((net, opt))
    assert torch.equal(train(twin, theirs, 4, start=3), train(net, opt, 4, start=3))
    assert torch.equal(theirs.multipliers, opt.multipliers)


def test_schedulers_move_the_rate_of_the_wrapped_optimiser():
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=1.0)
    opt = DriftPlusPenalty(inner, 2)
    schedulers = [
        torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5),
        torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0),
        torch.optim.lr_scheduler.SequentialLR(
            opt, [torch.optim.lr_scheduler.ConstantLR(opt), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 9)], [2]
        ),
        torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9),
    ]
    for group in inner.param_groups:
        group["lr"] = 1.0
    train(net, opt, 1)
    schedulers[0].step()
    assert inner.param_groups[0]["lr"] == opt.param_groups[0]["lr"] == 0.5
    inner.load_state_dict(inner.state_dict())  # replaces the groups of the wrapped one
    train(net, opt, 1)
    assert opt.param_groups is inner.param_groups


def test_parameter_groups_may_be_added_and_frozen_ones_stay():
    net, more = network(), nn.Parameter(torch.zeros(1))
    net[0].weight.requires_grad_(False)
    frozen = net[0].weight.clone()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2, penalty=2.0)
    opt.add_param_group({"params": [more], "lr": 0.5})
    loss, constraints = asked(net, 0)
    turn(opt, loss + (more - 1).square().sum(), constraints)
    assert more.item() == 1.0
    assert torch.equal(net[0].weight, frozen)
    assert len(opt.optimizer.param_groups) == 2


def test_accumulated_batches_are_one_batch():
    """With a weight of 1/k each, and multipliers that move once; constraints here are means over samples."""
    results = []
    for parts in (1, 4):
        net = network()
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 1, penalty=3.0)
        for t in range(6):
            X, y = batch(t)
            opt.zero_grad()
            for rows in range(0, 8, 8 // parts):
                here = slice(rows, rows + 8 // parts)
                out = net(X[here])
                opt.backward(((out - y[here]) ** 2).mean(), out.mean(), weight=1 / parts)
            opt.step()
        assert opt.t == 6
        results.append(torch.cat([opt.queue, *(p.detach().flatten() for p in net.parameters())]))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_a_closure_is_called_once():
    net, calls = network(), []
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)

    def closure():
        calls.append(1)
        loss, constraints = asked(net, 0)
        opt.zero_grad()
        opt.backward(loss, constraints)
        return loss

    assert opt.step(closure) > 0
    assert (len(calls), opt.t) == (1, 1)


def test_zero_grad_forgets_a_round_that_was_not_stepped():
    x, opt = one()
    opt.backward(2 * x.sum(), 100 - x)
    turn(opt, 2 * x.sum(), 1 - x)
    assert x.grad is not None
    assert opt.multipliers.item() == pytest.approx(0.2)
    assert opt._dual.energy.item() == 1.0


def test_gradients_that_the_network_forgets_are_a_round_forgotten():
    """`model.zero_grad()`, with which many loops begin, knows nothing of multipliers; nor that a scaler left a step
    out."""
    net, twin = network(), network()
    a = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
    b = DriftPlusPenalty(torch.optim.SGD(twin.parameters(), lr=0.1), 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    for t in range(6):
        loss, constraints = asked(net, t)
        turn(a, loss, constraints + 0.5)
        for factor in (torch.inf, 1.0):
            loss, constraints = asked(twin, t)
            twin.zero_grad()
            b.backward(factor * loss, factor * (constraints + 0.5), scaler=scaler)
            scaler.step(b)
            scaler.update()
    assert b.t == 6
    torch.testing.assert_close(a.multipliers, b.multipliers, rtol=1e-4, atol=1e-6)
    assert b.multipliers.max() > 0


def test_gradients_may_be_clipped_on_the_way_to_the_step_scaled_or_not():
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**10)):
        net = network()
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2, penalty=3.0)
        for t in range(6):
            opt.zero_grad()
            loss, constraints = asked(net, t)
            opt.backward(loss, constraints + 0.5, scaler=scaler)
            if scaler is not None:
                scaler.unscale_(opt)
            before = torch.cat([p.detach().flatten() for p in net.parameters()])
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            if scaler is None:
                opt.step()
            else:
                scaler.step(opt)
                scaler.update()
            now = torch.cat([p.detach().flatten() for p in net.parameters()])
            assert (now - before).norm() < 0.0501
        ends.append(torch.cat([now, opt.queue]))
    assert opt.queue.max() > 0
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_a_graph_that_is_kept_serves_two_optimisers():
    """A body and a head with optimisers of their own, as in adversarial training."""
    ends = []
    for shared in (False, True):
        body, head = network(0), nn.Parameter(torch.ones(1))
        a = DriftPlusPenalty(torch.optim.SGD(body.parameters(), lr=0.1), 2)
        b = DriftPlusPenalty(torch.optim.SGD([head], lr=0.1), 1)
        for t in range(4):
            loss, constraints = asked(body, t)
            a.zero_grad()
            a.backward(loss, constraints, retain_graph=shared)
            again = loss if shared else asked(body, t)[0]
            kept = [p.grad.clone() for p in body.parameters()]
            b.zero_grad()
            b.backward((again * head).sum(), head.sum() - 1)
            for p, grad in zip(body.parameters(), kept, strict=True):
                p.grad = grad
            a.step()
            b.step()
        ends.append(torch.cat([head.detach(), *(p.detach().flatten() for p in body.parameters())]))
    assert torch.equal(*ends)


def test_while_all_parameters_are_frozen_nothing_moves():
    net = network().requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    for penalty in (None, 2.0):
        opt, x = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2, penalty=penalty), torch.ones(1)
        x.requires_grad_()
        for t in range(2):
            loss, constraints = asked(net, t)
            turn(opt, loss * x.sum(), constraints * x - 100)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())


def test_mixed_precision_scales_losses_and_constraints_alike_and_skipped_steps_change_nothing():
    plain, scaled = network(), network()
    a = DriftPlusPenalty(torch.optim.SGD(plain.parameters(), lr=0.1), 2)
    b = DriftPlusPenalty(torch.optim.SGD(scaled.parameters(), lr=0.1), 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    for t in range(12):
        turn(a, *asked(plain, t))
        loss, constraints = asked(scaled, t)
        b.zero_grad()
        b.backward(loss, constraints, scaler=scaler)
        scaler.step(b)
        scaler.update()
    torch.testing.assert_close(a.multipliers, b.multipliers, rtol=1e-4, atol=1e-6)
    assert b.multipliers.max() > 0
    before = b.state_dict()["drift_plus_penalty"]
    loss, constraints = asked(scaled, 99)
    b.zero_grad()
    b.backward(loss * float("inf"), constraints * float("inf"), scaler=scaler)
    scaler.step(b)
    scaler.update()
    after = b.state_dict()["drift_plus_penalty"]
    assert all(torch.equal(after[k], before[k]) if isinstance(before[k], torch.Tensor) else after[k] == before[k]
               for k in before)  # fmt: skip
    assert scaler.get_scale() == 2.0**13


def test_half_precision_keeps_multipliers_in_single():
    net = network()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, constraints = asked(net, 0)
        half = [constraints[0].bfloat16(), constraints[1].bfloat16()]
    turn(opt, loss.bfloat16(), half)
    assert opt.multipliers.dtype == torch.float32
    net = network().bfloat16()
    opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 1)
    for t in range(30):
        X, y = batch(t)
        out = net(X.bfloat16())
        turn(opt, ((out - y) ** 2).mean(), out.square().mean() - 0.5)
    assert opt.queue.dtype == torch.float32
    assert opt.multipliers.item() > 0


@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_have_a_size_too(inner):
    table = nn.Embedding(5, 2, sparse=True)
    opt = DriftPlusPenalty(inner(table.parameters(), lr=0.1), 1)
    for _ in range(12):
        out = table(torch.tensor([1, 1, 3]))
        turn(opt, out.sum(), -out.sum() - 1)
    assert opt.multipliers.item() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own, of what it is built on
def test_a_compiled_network_is_trained_as_the_plain_one_is():
    import shutil

    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    results = []
    for compiled in (False, True):
        net = network()
        forward = torch.compile(net) if compiled else net
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)
        for t in range(25):
            turn(opt, *asked(forward, t))
        results.append(torch.cat([opt.multipliers, *(p.detach().flatten() for p in net.parameters())]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_training_step_may_be_compiled_as_a_whole():
    """Its tracer goes around what the optimiser does, which keeps numbers from backward to step."""
    results = []
    for compiled in (False, True):
        net = network()
        opt = DriftPlusPenalty(torch.optim.SGD(net.parameters(), lr=0.1), 2)

        def step(t, net=net, opt=opt):
            loss, constraints = asked(net, t)
            turn(opt, loss, constraints + 0.5)

        act = torch.compile(step, backend="eager") if compiled else step
        for t in range(12):
            act(t)
        results.append(torch.cat([opt.multipliers, *(p.detach().flatten() for p in net.parameters())]))
    assert results[0][0] > 0
    assert torch.equal(*results)
