"""Many writers of one user's memory, in two processes on one PostgreSQL.

No edit is lost, and only edits of the same line collide. Each writer has a line in each shared
block, with an empty line between any two, so these edits never collide. In one more block all
writers count up one number, so any two concurrent edits collide. There are three kinds of writers:
an owner who edits the version that she read, an agent in a step, and an agent whose proposals are
approved. Afterwards the audit reads every version.
"""

import asyncio
import itertools
import os
import random
import re
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ricordo.domain.block import Block
from ricordo.domain.clock import SystemClock
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion
from ricordo.errors import Stale
from ricordo.memory import approval, user_memory
from ricordo.memory.approval import Approved
from ricordo.memory.commit import commit
from ricordo.memory.edits import NO_REASON, EditContext, WorkingMemory
from ricordo.memory.user_memory import ProposalOptions, PutOptions, UserMemory
from ricordo.storage import agents, history, versions
from ricordo.storage.engine.postgres import open_postgres
from ricordo.storage.engine.store import Store, Transaction
from tests.campaigns.sizes import short_and_long
from tests.seams import make
from tests.support import postgres
from tests.support.ready import Helper

# The program that each of the two processes runs.
PROGRAM = """
import asyncio, sys
from tests.campaigns.test_memory_writers import write_all
database, agent_id, *numbers = sys.argv[3:]
asyncio.run(write_all(database, agent_id, *map(int, numbers)))
"""
USER = "ada"
ADA = Actor("administrator", "user-ada", "Ada")
SHARED = ("human", "goals", "courses/maths")
COUNTER = "counter"
_EVERY = 8  # Only every eighth edit counts up, since writers that count wait for each other.
_LINE = re.compile(r"writer (\d+): (\d+)")


@pytest.mark.campaign
@pytest.mark.parametrize(("writers", "edits"), short_and_long((4, 8), (50, 60)))
async def test_writers_in_two_processes_lose_nothing(
    writers: int, edits: int, helper: Helper, tmp_path: Path
) -> None:
    async with postgres.new_store(SystemClock()) as store:
        agent_id = await lay_out(store, writers)
        url = postgres.server().shared_database()
        orders = [
            ["-c", PROGRAM, url, agent_id, str(edits), *map(str, numbers)]
            for numbers in (range(writers // 2), range(writers // 2, writers))
        ]
        running = [
            asyncio.to_thread(helper.run, order, tmp_path, dict(os.environ)) for order in orders
        ]
        ended = await asyncio.gather(*running)
        assert [process.returncode for process in ended] == [0, 0], ended
        assert sum(int(process.stdout) for process in ended) > 0
        assert await audit(store, writers=writers, edits=edits) == len(SHARED) + 1 + writers * edits


async def lay_out(store: Store, writers: int) -> str:
    """Make the user, an agent, and blocks with a line for each writer; return the agent's id."""
    lines = "\n\n".join(f"writer {number}: 0" for number in range(writers))

    def work(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, Scope(), USER, makes=True)
        for label in SHARED:
            user_memory.put(tx, owned, label, lines, ADA, PutOptions(policy="direct"))
        user_memory.put(tx, owned, COUNTER, "0", ADA)

    await store.write(work)
    return (await make.stored_agent(store, make.agent("Tutor", id=new_id("agent")))).agent.id


async def audit(store: Store, *, writers: int, edits: int) -> int:
    """Raise unless every edit of every writer is in the history once and in the text at the end.

    Returns the number of versions.
    """
    counted = len(range(0, edits, _EVERY))

    def work(tx: Transaction) -> int:
        owned = user_memory.open_memory(tx, Scope(), USER)
        done: Counter[str] = Counter()
        for label in SHARED:
            done += _audit_block(tx, owned, label, writers)
        expected = Counter(
            f"{w} {e}" for w in range(writers) for e in range(1, edits + 1) if (e - 1) % _EVERY
        )
        assert done == expected, (expected - done, done - expected)
        counts = [text.split()[0] for _, text in _oldest_first(tx, owned, COUNTER)]
        assert counts == [str(number) for number in range(writers * counted + 1)]
        return owned.chain.versions

    return await store.read(work)


def _audit_block(tx: Transaction, owned: UserMemory, label: str, writers: int) -> Counter[str]:
    """Return the edits in the block's versions.

    Each must change its writer's line and no other.
    """
    done: Counter[str] = Counter()
    states = [
        ({int(w): int(e) for w, e in _LINE.findall(text)}, one)
        for one, text in _oldest_first(tx, owned, label)
    ]
    assert states[0][0] == dict.fromkeys(range(writers), 0)
    for (before, _), (after, version) in itertools.pairwise(states):
        ((writer, edit),) = after.items() - before.items()
        assert after.keys() == before.keys()
        assert version.reason == f"writer {writer}: {edit}"
        assert edit > before[writer]
        done[f"{writer} {edit}"] += 1
    return done


def _oldest_first(tx: Transaction, owned: UserMemory, label: str) -> list[tuple[BlockVersion, str]]:
    pages: list[BlockVersion] = []
    while found := history.page(
        tx, owned.chain.id, label=label, limit=1000, before=pages[-1].number if pages else None
    ):
        pages += found
    texts = versions.read_texts(tx, owned.chain.id, [one.blob for one in pages if one.blob])
    return [(one, texts[one.blob or b""]) for one in reversed(pages)]


async def write(store: Store, agent_id: str, number: int, edits: int) -> int:
    """Make one writer's edits in order; return how often it collided at the counter."""
    collisions = 0
    ways = (_by_proposal, _by_agent, _by_owner)
    for edit in range(1, edits + 1):
        if (edit - 1) % _EVERY == 0:
            collisions += await _count_up(store, number)
            continue
        owned, block = await _read(store, SHARED[edit % len(SHARED)])
        line = next(
            line for line in block.value.split("\n") if line.startswith(f"writer {number}: ")
        )
        await ways[edit % 3](store, agent_id, owned, block, line, f"writer {number}: {edit}")
    return collisions


async def _read(store: Store, label: str) -> tuple[UserMemory, Block]:
    def work(tx: Transaction) -> tuple[UserMemory, Block]:
        owned = user_memory.open_memory(tx, Scope(), USER)
        return owned, user_memory.require(tx, owned, label)

    return await store.read(work)


async def _by_owner(
    store: Store, _agent_id: str, owned: UserMemory, block: Block, line: str, said: str
) -> None:
    options = PutOptions(message=said, expected=(block.head or b"").hex())
    text = block.value.replace(line, said)
    await store.write(lambda tx: user_memory.put(tx, owned, block.label, text, ADA, options))


async def _by_agent(
    store: Store, agent_id: str, owned: UserMemory, block: Block, line: str, said: str
) -> None:
    state = await store.read(lambda tx: agents.load(tx, Scope(), agent_id))
    block = replace(block, is_users=True)
    state = replace(
        state, blocks=(block,), conversation=replace(state.conversation, user_id=owned.user.id)
    )
    memory = WorkingMemory(state)
    memory.write(
        block.label, block.value.replace(line, said), "call-1", reason=replace(NO_REASON, text=said)
    )
    context = EditContext(Actor("agent", agent_id, "Tutor"), "run-1", "step-1")
    done = await store.write(lambda tx: commit(tx, state, memory, Scope(), context))
    assert not done.failed, done.failed


async def _by_proposal(
    store: Store, _agent_id: str, owned: UserMemory, block: Block, line: str, said: str
) -> None:
    # Each writer is a separate actor.
    by, options = (
        Actor("agent", f"agent-{said.split()[1][:-1]}", "Coach"),
        ProposalOptions(said),
    )
    proposal = await store.write(
        lambda tx: user_memory.propose_edit(tx, owned, block.label, line, said, by, options)
    )
    done = await store.write(lambda tx: approval.approve(tx, Scope(), proposal.id, ADA))
    assert isinstance(done, Approved), done


async def _count_up(store: Store, number: int) -> int:
    """Count up; return how often another writer was faster."""
    met = 0
    while True:
        owned, block = await _read(store, COUNTER)
        options = PutOptions(expected=(block.head or b"").hex())
        # Two equal edits do not collide, so each writer signs its edit.
        text = f"{int(block.value.split()[0]) + 1} by writer {number}"
        try:
            await store.write(lambda tx: user_memory.put(tx, owned, COUNTER, text, ADA, options))  # noqa: B023
        except Stale:
            met += 1
            await asyncio.sleep(random.uniform(0, 0.01 * met))  # noqa: S311 - no secret
        else:
            return met


async def write_all(database: str, agent_id: str, edits: int, *numbers: int) -> None:
    store = open_postgres(database, connections=6, backups=Path(tempfile.gettempdir()))
    print(sum(await asyncio.gather(*(write(store, agent_id, number, edits) for number in numbers))))
    await store.close()
