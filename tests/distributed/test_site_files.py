"""What the owner of a machine decides there: which hubs are obeyed, what its agents are, and what they may tell."""

import subprocess

import numpy as np
import pytest
from test_actor import WALK, sent_spec, unsigned

from ergodrift import distributed as dd
from ergodrift.distributed import replies
from ergodrift.distributed.actor import AgentActor
from ergodrift.distributed.faults import RefusalError
from ergodrift.distributed.serialization import deserialize, serialize
from walks import PROBLEM, agents

pytest.importorskip("cryptography")
pytest.importorskip("ray")
pytestmark = pytest.mark.x64("walks equal their simulation to float64's digits")

NOT_SIGNED = replies.Fault("what it was sent is not signed by a hub that its machine knows")


@pytest.fixture
def keys(tmp_path):
    """The files of two hubs' keys, private and public, made as the guide makes them."""
    for name in ("one", "other"):
        private, public = tmp_path / f"{name}.key", tmp_path / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return tmp_path


def test_what_is_not_signed_by_a_known_hub_is_never_unpickled(keys):
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    good = serialize({"a": 1}, keys / "one.key")
    assert deserialize(good, [keys / "other.pub", keys / "one.pub"]) == {"a": 1}
    assert deserialize(good) == {"a": 1}
    bombs = [unsigned(Bomb()), serialize(Bomb(), keys / "other.key"), good[:64] + unsigned(Bomb())[64:], b""]
    for sent in [*bombs, good[:-1] + bytes([good[-1] ^ 1])]:
        with pytest.raises(RefusalError, match="not signed"):
            deserialize(sent, [keys / "one.pub"])
    (keys / "rsa.key").write_bytes(
        subprocess.run(["openssl", "genpkey", "-algorithm", "x25519"], check=True, capture_output=True).stdout
    )
    with pytest.raises(ValueError, match="key of another kind"):
        serialize(1, keys / "rsa.key")


def site(folder, text, monkeypatch):
    (folder / "site.toml").write_text(text)
    monkeypatch.setenv("ERGODRIFT_SITE", str(folder / "site.toml"))


def test_a_machine_obeys_the_hubs_it_knows(keys, monkeypatch):
    """Neither an agent nor a function of another hub is taken."""
    site(keys, f'hub_keys = ["{keys}/one.pub"]', monkeypatch)
    agent = dd.Agent(agents()[0].data, log=keys / "log")
    spec = sent_spec(PROBLEM)[64:]
    from ergodrift.distributed.serialization import _private_key

    signed = {name: _private_key(keys / f"{name}.key").sign(spec) + spec for name in ("one", "other")}
    members = {name: AgentActor(serialize(agent, keys / f"{name}.key"), 0, "a") for name in ("one", "other")}
    assert isinstance(replies.parsed(members["one"].prepare(WALK, signed["one"])), replies.Ready)
    for actor, sent in [("one", signed["other"]), ("one", unsigned(1)), ("other", signed["other"])]:
        fresh = AgentActor(members[actor].sent, 0, "a")
        assert replies.parsed(fresh.prepare(WALK, sent)) == NOT_SIGNED


def test_a_machines_agents_are_what_its_file_says(tmp_path, monkeypatch):
    """The hub may name them, and no more: not their data, and not less privacy than their owner wants."""
    pytest.importorskip("dp_accounting")
    np.savez(tmp_path / "rows.npz", **dict(agents()[0].data))  # type: ignore[reportArgumentType]
    privacy = f'{{clip = 1.0, noise = 80.0, budget = 2.0, ledger = "{tmp_path}/ledger"}}'
    own = f'[agents."north/0"]\ndata = "{tmp_path}/rows.npz"\nlog = "{tmp_path}/log"\nprivacy = {privacy}\n'
    site(tmp_path, own, monkeypatch)
    asked = unsigned(dd.Agent(None, privacy=None))
    actor = AgentActor(asked, 0, "north/0")
    said = replies.parsed(actor.prepare(WALK, sent_spec(PROBLEM)))
    assert isinstance(said, replies.Ready)
    assert said.privacy is not None
    assert said.privacy[1] == 80.0
    assert actor.ledger is not None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stranger = AgentActor(asked, 0, "north/1")
    assert replies.parsed(stranger.prepare(WALK, sent_spec(PROBLEM))) == replies.Fault(
        "its machine has no agent of that name"
    )
    site(tmp_path, "hubkeys = []", monkeypatch)
    with pytest.raises(ValueError, match="a site has hub_keys and agents, not hubkeys"):
        dd.Site.here()
