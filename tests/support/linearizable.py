"""A checker of histories of one block, after Wing and Gong, with the cache of Porcupine.

A history is linearizable if its operations can be put into one order with two properties. Each
operation takes effect between its call and its answer. Each answer is what the block gives at that
point of the order. The block here is a tuple of lines. See Wing and Gong, "Testing and verifying
concurrent objects" (1993), and https://github.com/anishathalye/porcupine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Lines = tuple[str, ...]
Kind = Literal["read", "write", "edit", "propose", "approve", "reject"]


@dataclass(frozen=True)
class Operation:
    """One request with its answer.

    `called` and `answered` are moments of one clock. `lines` are those that were read or written.
    `old` and `new` are texts of the line `slot`. `proposal` is the id of a proposal. A request that
    was refused has no `done`, and changes nothing.
    """

    kind: Kind
    called: int
    answered: int
    done: bool = True
    lines: Lines = ()
    slot: int = 0
    old: str = ""
    new: str = ""
    proposal: str = ""


@dataclass(frozen=True)
class State:
    """A block's lines, and the state of each proposal: open, approved or rejected."""

    lines: Lines
    proposals: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Lines, frozenset[tuple[str, str]]]:
        """Return the state as a hashable value."""
        return self.lines, frozenset(self.proposals.items())

    def with_line(self, slot: int, text: str) -> "State":
        return replace(self, lines=(*self.lines[:slot], text, *self.lines[slot + 1 :]))

    def with_proposal(self, id: str, status: str) -> "State":
        return replace(self, proposals={**self.proposals, id: status})


def after(state: State, operation: Operation) -> State | None:
    """Return the state after an operation; None if its answer is impossible in this state."""
    if operation.kind == "read":
        return state if state.lines == operation.lines else None
    if not operation.done:
        return state
    if operation.kind == "write":
        return replace(state, lines=operation.lines)
    if operation.kind == "reject":
        is_open = state.proposals.get(operation.proposal) in ("open", "rejected")
        return state.with_proposal(operation.proposal, "rejected") if is_open else None
    if operation.kind == "propose":
        is_there = state.lines[operation.slot] == operation.old
        return state.with_proposal(operation.proposal, "open") if is_there else None
    return _changed(state, operation)


def _changed(state: State, operation: Operation) -> State | None:
    """Return the state after an edit or an approval, which changes one line from old to new."""
    if operation.kind == "approve":
        status = state.proposals.get(operation.proposal)
        if status == "approved":
            return state
        if status != "open":
            return None
        state = state.with_proposal(operation.proposal, "approved")
    if state.lines[operation.slot] not in (operation.old, operation.new):
        return None
    return state.with_line(operation.slot, operation.new)


def is_linearizable(first: State, history: Sequence[Operation]) -> bool:
    """Return whether there is an order of the operations that explains all answers."""
    calls = sorted(history, key=lambda operation: operation.called)
    everything = (1 << len(calls)) - 1
    seen: set[tuple[int, tuple[Lines, frozenset[tuple[str, str]]]]] = set()
    waiting = [(0, first)]
    while waiting:
        done, state = waiting.pop()
        if done == everything:
            return True
        if (done, state.key) in seen:
            continue
        seen.add((done, state.key))
        for number in _next(calls, done):
            following = after(state, calls[number])
            if following is not None:
                waiting.append((done | 1 << number, following))
    return False


def _next(calls: Sequence[Operation], done: int) -> list[int]:
    """Return the operations that may come next: no remaining one was answered before their call."""
    left = [number for number in range(len(calls)) if not done >> number & 1]
    first_answer = min(calls[number].answered for number in left)
    return [number for number in left if calls[number].called < first_answer]
