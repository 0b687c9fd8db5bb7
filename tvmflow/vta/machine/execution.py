"""Run a launch on three units that synchronize through tokens; a `Machine` executes the instructions.

Any order that the tokens allow is legal, and the output must not depend on it: `order` chooses one. Some things that
the reference simulator accepts are errors here: a deadlock, a remaining token, instructions after a FINISH.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tvmflow.support.errors import ProgramError, UnknownNameError
from tvmflow.vta.isa.instructions import Finish, Instruction, Module, check_steps, disassemble
from tvmflow.vta.isa.program import QUEUE_NAMES, QUEUES, Launch, pops, pushes


class Machine(Protocol):
    def execute(self, instruction: Instruction) -> None: ...


_EAGER = {
    "load-eager": (Module.LOAD, Module.COMPUTE, Module.STORE),
    "compute-first": (Module.COMPUTE, Module.LOAD, Module.STORE),
    "store-first": (Module.STORE, Module.COMPUTE, Module.LOAD),
}
ORDERS = (*_EAGER, "random:SEED")


class _Units:
    def __init__(self, instructions: Iterable[Instruction]) -> None:
        self.heads: dict[Module, deque[Instruction]] = {module: deque() for module in Module}
        for instruction in instructions:
            self.heads[instruction.module].append(instruction)
        self.tokens = [0] * len(QUEUES)
        self.finished = False

    def can_start(self, module: Module) -> bool:
        head = self.heads[module]
        return bool(head) and not self.finished and all(self.tokens[queue] for queue in pops(head[0]))

    def take(self, module: Module) -> Instruction:
        instruction = self.heads[module].popleft()
        for queue in pops(instruction):
            self.tokens[queue] -= 1
        return instruction

    def complete(self, instruction: Instruction) -> None:
        for queue in pushes(instruction):
            self.tokens[queue] += 1
        self.finished = self.finished or isinstance(instruction, Finish)

    def describe(self) -> str:
        heads = "; ".join(
            f"{module.name}: {disassemble(queue[0]) if queue else 'empty'} ({len(queue)} left)"
            for module, queue in self.heads.items()
        )
        return f"{heads}; tokens " + ", ".join(
            f"{name} {count}" for name, count in zip(QUEUE_NAMES, self.tokens, strict=True)
        )


def order_instructions(launch: Launch, order: str = "load-eager") -> Iterable[Instruction]:
    """Yield the instructions in an order that the tokens allow. Raises ProgramError on deadlock and leftovers."""
    units = _Units(launch.instructions)
    choose = _make_chooser(order)
    while not units.finished:
        ready = [module for module in Module if units.can_start(module)]
        if not ready:
            raise ProgramError(
                f"deadlock in {launch.name}: {units.describe()}",
                "a push for every pop, in an order that can be reached",
            )
        instruction = units.take(choose(ready))
        yield instruction
        units.complete(instruction)
    if any(units.heads.values()) or any(units.tokens):
        raise ProgramError(f"FINISH of {launch.name} leaves work: {units.describe()}", "empty queues and no tokens")


def _make_chooser(order: str) -> Callable[[list[Module]], Module]:
    if order in _EAGER:
        priority = _EAGER[order]
        return lambda ready: min(ready, key=priority.index)
    kind, _, seed = order.partition(":")
    if kind != "random" or not seed.isdecimal():
        raise UnknownNameError(f"order {order!r}", legal=ORDERS)
    chance = random.Random(int(seed))  # noqa: S311 (an order to test with, no secret)
    return chance.choice


def run_launch(launch: Launch, machine: Machine, order: str = "load-eager") -> None:
    """Execute every instruction of a launch. Raises ProgramError, before it runs, when it would take too many steps."""
    check_steps(launch.instructions, launch.name)
    for instruction in order_instructions(launch, order):
        machine.execute(instruction)
