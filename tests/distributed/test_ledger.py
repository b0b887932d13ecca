"""An agent's budget: what it has answered is written off before, outlasts its process, and is never exceeded."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_actor import WALK, prepared, sent_spec, unsigned

from ergodrift import distributed as dd
from ergodrift.distributed import replies
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.ledger import Ledger, epsilon_of, limit_of
from walks import DIM, PROBLEM, agents

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")


def test_the_limit_is_the_inverse_of_epsilon():
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-3)]:
        assert epsilon_of(limit_of(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)
        assert epsilon_of(limit_of(epsilon, delta), delta) <= epsilon
    privacy = dd.Privacy(1.0, noise=40.0)
    assert privacy.epsilon(10) == pytest.approx(epsilon_of(10 * 16 / 40**2, 1e-5))


def asked(actor, number):
    question = np.random.default_rng(number).uniform(-0.5, 0.5, DIM)
    return replies.parsed(actor.answer(WALK + question.tobytes()))


def test_an_agent_answers_up_to_its_epsilon_and_never_beyond(tmp_path):
    """Whoever asks, in whatever walk, and however often the agent is started."""
    file = tmp_path / "ledger"
    privacy = dd.Privacy(1.0, noise=80.0, delta=1e-5, budget=2.0, ledger=file)
    most = next(count for count in range(1000) if privacy.epsilon(count + 1) > 2.0)
    agent, answered = dd.Agent(agents()[0].data, privacy=privacy, log=tmp_path / "log"), 0
    assert most > 20
    for _ in range(5):  # each in a process of its own, as it were
        actor = prepared(agent, PROBLEM)
        for number in range(5):
            answered += isinstance(asked(actor, number), bytes)
    assert answered == 25
    assert privacy.epsilon(25) <= epsilon_of(json.loads(file.read_text())["spent"], 1e-5) <= 2.0
    actor = prepared(agent, PROBLEM)
    said = [asked(actor, number) for number in range(most)]
    answered += sum(isinstance(one, bytes) for one in said)
    assert said[-1] == replies.Fault("its privacy budget is spent")
    assert most - 2 <= answered <= most  # of what was written off, each start has lost less than an answer
    restarted = AgentActor(unsigned(agent), 0)
    assert replies.parsed(restarted.prepare(WALK, sent_spec(PROBLEM))) == replies.Fault("its privacy budget is spent")


def test_a_ledger_that_is_damaged_or_cannot_be_written_stops_all_answers(tmp_path):
    file = tmp_path / "ledger"
    for content in ("", "{}", '{"format": "ergodrift ledger v1", "spent": -1}', '{"format": "ergodrift ledger v1"}'):
        file.write_text(content)
        with pytest.raises(RefusalError, match="its privacy ledger cannot be used"):
            Ledger(file, 1.0, 1e-5).spend(1e-6)
        assert file.read_text() == content
    with pytest.raises(RefusalError, match="its privacy ledger cannot be used"):
        Ledger(tmp_path / "no" / "ledger", 1.0, 1e-5).spend(1e-6)


def test_nothing_is_gained_by_spending_what_is_no_cost(tmp_path):
    ledger = Ledger(tmp_path / "ledger", 1.0, 1e-5)
    for cost in (-1e9, math.nan, -math.inf):
        with pytest.raises(RefusalError, match="its privacy budget is spent"):
            ledger.spend(cost)
    with pytest.raises(RefusalError, match="its privacy budget is spent"):
        ledger.spend(math.inf)
    assert ledger.left == ledger.spent() == 0


@pytest.mark.parametrize("gone", [True, False])
def test_a_ledger_that_is_removed_or_set_back_gives_nothing_anew(tmp_path, gone):
    """To a process that has seen what it said. The next one cannot know: files are their owner's."""
    file = tmp_path / "ledger"
    ledger = Ledger(file, 1.0, 1e-5)
    ledger.spend(0.4 * ledger.limit)
    before = file.read_text()
    ledger.spend(0.4 * ledger.limit)
    file.unlink() if gone else file.write_text(before)
    with pytest.raises(RefusalError, match=r"its privacy ledger cannot be used: .* it said .* before"):
        ledger.spend(0.1 * ledger.limit)
    Ledger(file, 1.0, 1e-5).spend(0.1 * ledger.limit)


def test_a_budget_needs_noise_and_a_file():
    for options in ({"noise": 1.0}, {"ledger": "file"}):
        with pytest.raises(ValueError, match=r"budget=1.0 needs noise > 0, and ledger="):
            dd.Privacy(1.0, budget=1.0, **options)


def test_who_shares_a_ledger_shares_the_budget(tmp_path):
    ledgers = [Ledger(tmp_path / "ledger", 1.0, 1e-5) for _ in range(4)]
    one = ledgers[0].limit / 200

    def spend(ledger):
        count = 0
        try:
            while True:
                ledger.spend(one)
                count += 1
        except RefusalError:
            return count

    with ThreadPoolExecutor(4) as pool:
        assert 195 <= sum(pool.map(spend, ledgers)) <= 200


SPENDER = """
    import sys
    from ergodrift.distributed.ledger import Ledger
    ledger = Ledger(sys.argv[1], 1.0, 1e-5)
    ledger.left = 0.0
    while True:
        ledger.spend(ledger.limit / 5000)
        print("x", flush=True, end="")
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_ledger_never_forgets(tmp_path):
    """What was answered before SIGKILL is in the file, whenever it came."""
    file, answered, rng = tmp_path / "ledger", 0, np.random.default_rng(3)
    limit = Ledger(file, 1.0, 1e-5).limit
    for _ in range(4):
        command = [sys.executable, "-c", textwrap.dedent(SPENDER), str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "JAX_PLATFORMS": "cpu"}) as process:
            assert process.stdout is not None
            answered += len(process.stdout.read(int(rng.integers(50, 400))))
            process.send_signal(signal.SIGKILL)
            answered += len(process.stdout.read())
        spent = json.loads(file.read_text())["spent"] / limit * 5000
        assert math.floor(spent + 1e-6) >= answered
        assert spent <= answered + 4 * 6 + 1  # and it has lost little: a thousandth of the budget at each start
