"""Agents in processes of their own that share what they have in common: Python, JAX and compiled code.

One actor of Ray for each group of agents starts a process that has imported everything and computed nothing, and forks
an agent from it for each of them. Pages of memory that nobody writes to are shared, and what one agent has compiled the
others find in a folder. Each agent has its own process all the same: what kills one leaves the others alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import types
from multiprocessing.connection import Connection
from typing import Any

from ergodrift.distributed import replies
from ergodrift.distributed.peers import Starter

GOODBYE = 5.0  # seconds that an agent's process has to end by itself


class ForkActor:
    """Ray makes an actor of it: it passes questions on to the agents' processes, and starts those anew that died."""

    def __init__(self) -> None:
        self.compiled = tempfile.mkdtemp(prefix="ergodrift-")  # for this user's eyes alone
        os.environ.setdefault("MALLOC_ARENA_MAX", "1")  # an arena of memory for each thread would be an agent's largest
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["ergodrift.distributed.nursery"])
        self.children: dict[int, Child] = {}
        self.starting = threading.Lock()

    def prepare(self, number: int, name: str, walk: bytes, spec: bytes, agent: bytes) -> bytes:
        """Prepare an agent for a walk, in a new process unless it has one."""
        before = self.children.get(number)
        if before is not None:
            try:
                return before.call("prepare", walk, spec)
            except DiedError:  # since it was last asked; a new one may do better
                pass
        with self.starting:  # the process that forks is asked by one at a time
            child = self.children[number] = Child(self.context, agent, number, name, self.compiled)
        try:
            return child.call("prepare", walk, spec)
        except DiedError:
            return replies.refusal("ended")

    def answer(self, number: int, sent: bytes) -> bytes:
        """What an agent answers; nothing where its process is gone, as after any restart."""
        child = self.children.get(number)
        try:
            return b"" if child is None else child.call("answer", sent)
        except DiedError:
            return b""

    def process_id(self, number: int) -> bytes:
        """The process of an agent, or this one where it has none yet."""
        child = self.children.get(number)
        try:
            return replies.here(os.getpid()) if child is None else child.call("process_id")
        except DiedError:
            return replies.here(os.getpid())

    def end(self) -> None:
        """End all agents' processes."""
        for child in self.children.values():
            child.end()
        shutil.rmtree(self.compiled, ignore_errors=True)


class DiedError(Exception):
    """An agent's process has ended."""


class Child:
    """The process of one agent."""

    def __init__(self, context: Any, agent: bytes, number: int, name: str, compiled: str) -> None:
        self.ours, theirs = context.Pipe()
        self.lock = threading.Lock()
        self.process = context.Process(target=serve, args=(theirs, agent, number, name, compiled), daemon=True)
        # What runs here is Ray's own script, which the new process has no use for.
        script, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
        try:
            self.process.start()
        finally:
            sys.modules["__main__"] = script
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def call(self, method: str, *arguments: bytes) -> bytes:
        """What the agent answers, in plain bytes."""
        with self.lock:
            try:
                self.ours.send((method, arguments))
                return self.ours.recv()
            except (EOFError, OSError) as error:
                raise DiedError from error

    def end(self) -> None:
        self.ours.close()
        self.process.join(GOODBYE)
        if self.alive:
            self.process.kill()


def serve(pipe: Connection, agent: bytes, number: int, name: str, compiled: str) -> None:
    """The life of an agent's process: it answers until nobody asks any more."""
    import jax

    from ergodrift.distributed.actor import AgentActor

    jax.config.update("jax_compilation_cache_dir", compiled)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    actor = AgentActor(agent, number, name)
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(actor, method)(*arguments))
        if method == "prepare":  # tracing and compiling leave much behind that was needed once
            gc.collect()
            gc.freeze()
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)


class Lodger:
    """One agent of a `ForkActor`, as an actor of its own: what is remote goes to its host, with its number."""

    def __init__(self, host: Any, number: int, name: str, agent: Any) -> None:
        self.host = host
        self.answer = types.SimpleNamespace(remote=lambda sent: host.answer.remote(number, sent))
        self.process_id = types.SimpleNamespace(remote=lambda: host.process_id.remote(number))
        self.prepare = types.SimpleNamespace(
            remote=lambda walk, spec: host.prepare.remote(number, name, walk, spec, agent)
        )


class Forks:
    """The hosts of agents that are forked, one for each kind of resources that agents ask for."""

    def __init__(self, network: Starter) -> None:
        self.network, self.hosts = network, {}
        self.kinds = [tuple(sorted(agent.resources.items())) for agent in network.agents]

    def lodger(self, number: int, agent: bytes) -> Lodger:
        """An agent in a process of its own, at the host of its kind."""
        kind = self.kinds[number]
        if kind not in self.hosts:
            room = self.kinds.count(kind) + 1
            self.hosts[kind] = self.network.actor(ForkActor, dict(kind), concurrency=room)
        return Lodger(self.hosts[kind], number, self.network.names[number], self.network.ray.put(agent))

    def forget(self, lodger: Lodger) -> None:
        """Start a new host where this agent's has died, unless another agent has said so before."""
        self.hosts = {kind: host for kind, host in self.hosts.items() if host is not lodger.host}
