"""100 machines on paper: what breaks first, and when, by a model fitted to what was measured on one machine.

A hop of a token is: wait for the hub, `message` + `token` seconds of its time; the way there and back, `latency`; wait
for the machine, `answer` seconds. The hub puts tokens for the same machine that is busy into its next message, as the
walk does. Machines fail after an exponential time and are back after `restart` seconds, their tokens waiting. Fitted to
bench-results/walk.json: 16 tokens with 7 messages a hop, and 1,024 tokens with 8; on other machines latency is added.
Prints a table and writes bench-results/fleet.json.

    python benchmarks/fleet.py [--machines 100]
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import json
import random
from pathlib import Path

from common import OUT, write


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds."""

    message: float = 0.6e-3  # of the hub, for each message
    token: float = 2e-6  # of the hub, for each token in it
    answer: float = 0.5e-3  # of a machine, for each message
    row: float = 2e-6  # of a machine, for each token in it
    latency: float = 0.5e-3  # of the network, there and back
    life: float = 7 * 86400.0  # between failures of a machine
    restart: float = 60.0


def fitted(costs: Costs) -> Costs:
    """The costs that the measured rates imply, half of a hop's message being the hub's."""
    file = Path(OUT, "walk.json")
    if not file.exists():
        return costs
    rows = json.loads(file.read_text())["rows"]
    hop = rows["hop along a walk, µs"] * 1e-6
    many = 1024 / rows["token-rounds per second, 1,024 tokens, 1 local round"]
    return dataclasses.replace(costs, message=hop / 2, answer=hop / 2, token=max(many - 8 * hop / 2, 0) / 2048)


def simulate(costs: Costs, machines: int, tokens: int, hubs: int = 1, seconds: float = 20.0) -> dict[str, float]:
    """Token-hops per second, and how busy hub and machines are, in so many seconds."""
    rng = random.Random(0)
    waiting = [[0] * machines for _ in range(hubs)]  # tokens at the hub, for each machine
    in_flight = [[0] * machines for _ in range(hubs)]
    machine_free, hub_free = [0.0] * machines, [0.0] * hubs
    down = [rng.expovariate(1 / costs.life) for _ in range(machines)]
    for number in range(tokens):
        waiting[number % hubs][rng.randrange(machines)] += 1
    events: list[tuple[float, int, int]] = []
    hops, hub_busy, machine_busy = 0, 0.0, 0.0

    def send(hub: int, machine: int, now: float) -> None:
        nonlocal hub_busy, machine_busy
        count = waiting[hub][machine]
        waiting[hub][machine], in_flight[hub][machine] = 0, count
        spent = costs.message + costs.token * count
        hub_free[hub] = max(hub_free[hub], now) + spent
        begin = max(hub_free[hub] + costs.latency / 2, machine_free[machine])
        if begin > down[machine]:
            begin = max(begin, down[machine] + costs.restart)
            down[machine] = begin + rng.expovariate(1 / costs.life)
        work = costs.answer + costs.row * count
        machine_free[machine] = begin + work
        hub_busy, machine_busy = hub_busy + spent, machine_busy + work
        heapq.heappush(events, (begin + work + costs.latency / 2, hub, machine))

    for hub in range(hubs):
        for machine in range(machines):
            if waiting[hub][machine]:
                send(hub, machine, 0.0)
    while events and events[0][0] < seconds:
        now, hub, machine = heapq.heappop(events)
        moved = in_flight[hub][machine]
        in_flight[hub][machine] = 0
        hops += moved
        targets = [rng.randrange(machines) for _ in range(moved)]
        for target in targets:
            waiting[hub][target] += 1
        for target in {machine, *targets}:
            if waiting[hub][target] and not in_flight[hub][target]:
                send(hub, target, now)
    return {"rate": hops / seconds, "hub": hub_busy / seconds / hubs, "machines": machine_busy / seconds / machines}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machines", type=int, default=100)
    machines = parser.parse_args().machines
    costs = fitted(Costs())
    print(costs)
    print(f"{'tokens':>8}{'hubs':>6}{'token-hops/s':>14}{'hub busy':>10}{'machines busy':>15}")
    rows = []
    for tokens, hubs in [(1, 1), (16, 1), (64, 1), (256, 1), (1024, 1), (4096, 1), (1024, 4), (4096, 4)]:
        found = simulate(costs, machines, tokens, hubs)
        rows.append({"tokens": tokens, "hubs": hubs, **found})
        print(f"{tokens:8,}{hubs:6}{found['rate']:14,.0f}{found['hub']:10.0%}{found['machines']:15.1%}")
    full = next((row["tokens"] for row in rows if row["hub"] > 0.95), None)
    print(f"the hub is what breaks first: its messages fill it from {full} tokens on" if full else "nothing is full")
    away = machines * costs.restart / (costs.life + costs.restart)
    print(f"{away:.2g} of {machines} machines are down at any time; tokens there wait {costs.restart:.0f} s")
    write("fleet", {"machines": machines, "costs": dataclasses.asdict(costs), "rows": rows, "down": away})


if __name__ == "__main__":
    main()
