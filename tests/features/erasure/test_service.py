"""Forgetting a user step by step: killed anywhere it is finished, others write meanwhile, and every table was thought of."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from ricordo.domain.job import Job, Report
from ricordo.domain.message import CompactionPart, TextPart, ToolReturnPart
from ricordo.domain.remote import SYNC, Remote
from ricordo.domain.scope import Scope
from ricordo.errors import NotFound, Unavailable
from ricordo.features.erasure import receipts
from ricordo.features.erasure.jobs import HANDLERS
from ricordo.features.erasure.queries import COVERED, JOB, columns_that_remain, columns_to_blank, tables_of_rows
from ricordo.features.erasure.service import find_receipt, forget
from ricordo.features.remotes import queries as remotes
from ricordo.memory import user_memory
from ricordo.memory.proposals import Draft, propose
from ricordo.search.index import insert_messages, insert_passages
from ricordo.search.vector_store import add_vectors, next_batch
from ricordo.storage import (
    archives,
    blocks,
    conversations,
    history,
    jobs,
    runs,
    users,
)
from ricordo.storage.columns import metadata
from ricordo.storage.memory_tables import blobs, is_in_chain
from ricordo.storage.paging import Page
from ricordo.storage.store import Transaction
from tests.agents.stage import Stage
from tests.conftest import BOTH
from tests.support import make
from tests.support.canaries import canary, in_tables
from tests.support.search import flush

DATABASES = BOTH
_ERASE, _SWEEP = HANDLERS


class Dying:
    """A store whose server is killed after some writes."""

    def __init__(self, store: Any, writes: int) -> None:
        self.clock, self._store, self._left = store.clock, store, writes
        self.read = store.read

    async def write(self, work: Any) -> Any:
        """Write, unless the end has come."""
        if not self._left:
            raise asyncio.CancelledError
        self._left -= 1
        return await self._store.write(work)


async def ada(stage: Stage, *, size: int = 3) -> tuple[str, str]:
    """A user with memory and a thread of so many messages, and an agent's archive with passages of hers; her id and the agent's."""
    state = await stage.state(await stage.agent())
    archive = await make.stored_archive(stage.store, state.agent, "Tea grows in Darjeeling.")

    def write(tx: Transaction) -> str:
        owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        for number in range(size):
            user_memory.put(tx, owned, "human", f"{canary('block')} {number}", Scope().actor)
        thread = make.conversation(state.agent, id="conv-ada", user_id=owned.user.id, message_count=size)
        conversations.insert_one(tx, thread)
        new = [make.message(state.agent, f"{canary('said')} {n}", conversation_id="conv-ada") for n in range(size)]
        insert_messages(tx, new)
        filed = [
            make.passage(archive, canary("passage"), user_id=owned.user.id, tags=("tea", canary("tag"))),
            make.passage(archive, "Tea.", tags=("tea",)),
        ]
        insert_passages(tx, archive, filed)
        return owned.user.id

    return await stage.store.write(write), state.agent.id


async def next_job(stage: Stage, kind: str = JOB, *, free: bool = True) -> Job | None:
    """The job of this kind that waits, taken as by the worker of the next server, which frees what the last one ran."""
    if free:
        await stage.store.write(jobs.take_over)

    def claim(tx: Transaction) -> Job | None:
        row = next(iter(tx.all(text(f"SELECT id FROM jobs WHERE kind = '{kind}' AND status = 'waiting'"))), None)  # noqa: S608
        return jobs.claim_one(tx, "worker", row.id) if row else None

    return await stage.store.write(claim)


async def work(stage: Stage, report: Report = lambda _done, _total: None) -> None:
    """Do the erasure that waits, to its end."""
    job = await next_job(stage)
    assert job is not None
    await _ERASE.run(stage.runtime, job, report)
    await stage.store.write(lambda tx: jobs.finish(tx, job))


async def found(stage: Stage) -> list[str]:
    """The rows that hold a canary."""
    return await stage.store.read(in_tables)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pauses between tries."""
    monkeypatch.setattr("ricordo.features.erasure.jobs._PAUSE", 0)


async def killed_after_any_write(stage: Stage) -> int:
    """Do the erasure with a server that is killed one write later each time; returns how often it was."""
    kills = 0
    while job := await next_job(stage):
        living, stage.runtime.store = stage.runtime.store, Dying(stage.store, kills + 1)  # type: ignore[assignment]
        stage.runtime.indexing = forgetting_indexing(stage)
        try:
            await _ERASE.run(stage.runtime, job, lambda _done, _total: None)
        except asyncio.CancelledError:
            kills += 1
            assert kills < 100
            assert await stage.store.read(lambda tx: users.find(tx, Scope(), "ada")) is None
        else:
            await living.write(lambda tx, job=job: jobs.finish(tx, job))
        finally:
            stage.runtime.store = living
            stage.runtime.indexing = forgetting_indexing(stage)
    return kills


async def test_killed_after_any_write_it_is_finished_by_the_next_and_nothing_is_counted_twice(stage: Stage) -> None:
    user_id, _ = await ada(stage)
    told = await forget(stage.runtime, Scope(), "ada")
    kills = await killed_after_any_write(stage)
    assert kills > 5
    assert await found(stage) == []
    receipt = receipts.find(stage.runtime.settings.data_dir, told["id"])
    assert receipt is not None
    expected = {"messages": 3, "passages": 1, "conversations": 1, "chains": 1, "commits": 3, "blocks": 1, "users": 1}
    assert {name: receipt["removed"].get(name) for name in expected} == expected
    assert receipt["subject"] == receipts.subject_of(user_id)


def forgetting_indexing(stage: Stage) -> Any:
    """The runtime's indexing over the store that it has now."""
    return replace(stage.runtime.indexing, store=stage.runtime.store)


async def test_killed_after_any_write_agents_that_are_hers_alone_go_too(stage: Stage) -> None:
    await ada(stage)
    agents = [await stage.agent(("human", canary("own")), user="ada", name=name) for name in ("Ida", "Ira")]
    for agent_id in agents:
        archive = await make.stored_archive(stage.store, (await stage.state(agent_id)).agent, canary("filed"))
    await stage.store.write(lambda tx: archives.attach(tx, agents[0], archive.id))
    told = await forget(stage.runtime, Scope(), "ada", with_agents=True)
    for agent_id in agents:
        with pytest.raises(NotFound):
            await stage.state(agent_id)
    assert await killed_after_any_write(stage) > 5
    assert await found(stage) == []
    receipt = receipts.find(stage.runtime.settings.data_dir, told["id"])
    assert receipt is not None
    expected = {"agents": 2, "archives": 2, "passages": 3, "chains": 3, "blocks": 3}
    assert {name: receipt["removed"].get(name) for name in expected} == expected
    assert {agent["id"] for agent in receipt["agents"] if agent["is_deleted"]} == set(agents)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_remote_in_the_data_folder_goes_with_her_whenever_the_server_is_killed(
    stage: Stage, tmp_path: Path, is_killed: bool
) -> None:
    user_id, _ = await ada(stage)
    folder = stage.runtime.settings.data_dir / "remotes"
    folder.mkdir(parents=True)
    follower = folder / "ada.json"
    follower.write_text(canary("remote"))
    elsewhere = str(tmp_path / "elsewhere.json")

    def add(tx: Transaction) -> None:
        chain = user_memory.open_memory(tx, Scope(), user_id).chain
        for number, address in enumerate((str(follower), elsewhere)):
            id = f"remote-{number}"
            remote = Remote(id, chain.organization_id, chain.id, "notebook", address, created_at=1)
            remotes.insert_one(tx, remote)
            jobs.add(tx, remote.job())

    await stage.store.write(add)
    told = await forget(stage.runtime, Scope(), "ada")
    if is_killed:
        await killed_after_any_write(stage)
    else:
        await work(stage)

    assert not follower.exists()
    receipt = receipts.find(stage.runtime.settings.data_dir, told["id"])
    assert receipt is not None
    assert f"The memory's notebook remote at {elsewhere} keeps a copy." in receipt["elsewhere"]
    assert not any(str(follower) in line for line in receipt["elsewhere"])
    assert [job for job in await all_jobs(stage) if job.kind == SYNC] == []  # it would make the file anew
    assert await found(stage) == []


async def test_a_receipt_is_written_only_when_all_is_done(stage: Stage) -> None:
    await ada(stage)
    told = await forget(stage.runtime, Scope(), "ada")
    assert told["status"] == "running"
    assert receipts.find(stage.runtime.settings.data_dir, told["id"]) is None
    assert (await forget(stage.runtime, Scope(), "ada"))["id"] == told["id"]
    await work(stage)
    assert (await find_receipt(stage.runtime, Scope(), told["id"]))["status"] == "done"
    other = Scope(organization_id="org-other")
    with pytest.raises(NotFound):
        await find_receipt(stage.runtime, other, told["id"])


async def test_an_erasure_whose_job_was_deleted_or_cancelled_is_taken_up_again(stage: Stage) -> None:
    await ada(stage)
    told = await forget(stage.runtime, Scope(), "ada")
    job = next(job for job in await all_jobs(stage) if job.kind == JOB)
    await stage.store.write(lambda tx: jobs.cancel(tx, Scope(), job.id))
    await _SWEEP.run(stage.runtime, job, lambda _done, _total: None)
    again = [job for job in await all_jobs(stage) if job.kind == JOB and job.status == "waiting"]
    assert [one.payload["id"] for one in again] == [told["id"]]
    for one in [job, *again]:
        await stage.store.write(lambda tx, one=one: jobs.remove(tx, Scope(), one.id))
    await _SWEEP.run(stage.runtime, job, lambda _done, _total: None)
    await work(stage)
    await _SWEEP.run(stage.runtime, job, lambda _done, _total: None)
    assert await next_job(stage) is None
    assert await found(stage) == []


async def all_jobs(stage: Stage) -> list[Job]:
    """Every job."""
    return await stage.store.read(lambda tx: jobs.page(tx, Scope(), Page(limit=100)))


async def test_windows_summaries_and_tags_of_others_show_nothing_of_hers(stage: Stage) -> None:
    user_id, agent_id = await ada(stage)
    state = await stage.state(agent_id)
    hers = make.message(state.agent, canary("shared"), user_id=user_id)
    summary = make.message(
        state.agent,
        role="summary",
        parts=(TextPart(f"She said {canary('summed')}."), CompactionPart("window", (hers.id,), 9, 3, 100, 3, 2)),
        created_at=stage.store.clock.now(),
    )
    early = make.message(state.agent, role="summary", parts=(TextPart("Before her."),), created_at=1)
    quoted = (
        ToolReturnPart("call-1", "conversation_search", "success", canary("quoted"), sources=(hers.id,)),
        ToolReturnPart("call-2", "conversation_search", "success", "Bob likes tea.", sources=("message-bob",)),
    )
    quoting = make.message(state.agent, role="tool", parts=quoted)
    bob = make.message(state.agent, "I am Bob.")
    await make.stored_messages(stage.store, hers, early, summary, quoting, bob)
    thread = await stage.thread(agent_id)
    window = [*thread.window, summary.id, hers.id, quoting.id, bob.id]
    await stage.store.write(lambda tx: conversations.save_window(tx, thread.id, window, "key", added=5))

    await forget(stage.runtime, Scope(), "ada")
    await work(stage)

    assert await found(stage) == []
    after = await stage.thread(agent_id)
    assert after.window == (*thread.window, summary.id, quoting.id, bob.id)
    assert after.message_count == thread.message_count + 4
    kept = {message.id: message for message in await stage.history(agent_id)}
    assert kept[summary.id].text == COVERED
    assert kept[early.id].text == "Before her."
    assert [part.content for part in kept[quoting.id].tool_returns] == [COVERED, "Bob likes tea."]
    assert "I am Bob." in kept[bob.id].text
    assert kept[after.window[0]].text.startswith("You remember.")
    (archive,) = (await stage.state(agent_id)).archives
    assert (archive.passage_count, archive.tags) == (2, ("tea",))


async def test_jobs_of_her_memorys_remotes_stop_and_leave_nothing(stage: Stage) -> None:
    await ada(stage)

    def follow(tx: Transaction) -> list[Job]:
        chain = user_memory.open_memory(tx, Scope(), "ada").chain
        added: list[Job] = []
        for number in range(2):
            remote = Remote(f"remote-{number}", chain.organization_id, chain.id, "git", f"https://{number}.example")
            remotes.insert_one(tx, remote)
            job = jobs.add(tx, remote.job())
            assert job
            claimed = jobs.claim_one(tx, "follower", job.id)
            assert claimed
            added.append(claimed)
        jobs.fail(tx, added[0], {"type": "Unavailable", "message": f"{canary('file')} is no block."})
        return added

    _, running = await stage.store.write(follow)
    await forget(stage.runtime, Scope(), "ada")
    await erased_beside(stage, running)
    assert [job.kind for job in await all_jobs(stage) if job.kind == SYNC] == []
    assert await found(stage) == []


async def test_jobs_that_bring_an_archive_of_her_agent_elsewhere_are_stopped(stage: Stage) -> None:
    await ada(stage)
    agent_id = await stage.agent(user="ada", name="Ida")
    archive = await make.stored_archive(stage.store, (await stage.state(agent_id)).agent, canary("filed"))
    busy = Job("search.embed", Scope().organization_id, {"owner_id": archive.id}, key=f"search.embed:{archive.id}")
    await stage.store.write(lambda tx: jobs.add(tx, busy))
    running = await stage.store.write(lambda tx: jobs.claim_one(tx, "other", busy.id))
    assert running
    await forget(stage.runtime, Scope(), "ada", with_agents=True)
    await erased_beside(stage, running)
    assert await found(stage) == []


async def test_archives_of_her_agents_are_gone_for_everyone_at_once(stage: Stage) -> None:
    await ada(stage)
    hers = [await stage.agent(user="ada", name=name) for name in ("Ida", "Ira")]
    own = await make.stored_archive(stage.store, (await stage.state(hers[0])).agent, canary("filed"))
    shared = await make.stored_archive(stage.store, (await stage.state(hers[0])).agent, "Tea grows in Assam.")
    others = await stage.agent(name="Bo")

    def share(tx: Transaction) -> None:
        archives.attach(tx, hers[1], own.id)
        archives.attach(tx, others, shared.id)

    await stage.store.write(share)
    await forget(stage.runtime, Scope(), "ada", with_agents=True)
    for finished in (False, True):
        with pytest.raises(NotFound):
            await stage.store.read(lambda tx: archives.get(tx, Scope(), own.id))
        assert (await stage.store.read(lambda tx: archives.get(tx, Scope(), shared.id))).passage_count == 1
        if not finished:
            await work(stage)
    assert await found(stage) == []


async def erased_beside(stage: Stage, running: Job) -> None:
    """Do the erasure that waits, which tells this job to stop and goes on once its worker let go of it."""
    job = await next_job(stage, free=False)
    assert job
    erasure = asyncio.create_task(_ERASE.run(stage.runtime, job, lambda _done, _total: None))
    async with asyncio.timeout(20):
        while not erasure.done() and not await stage.store.write(lambda tx: jobs.release(tx, running)):
            pass  # each write gives way
        assert not erasure.done()
        await erasure


async def test_other_writers_wait_for_one_portion_at_most(stage: Stage) -> None:
    await ada(stage, size=150)
    other = await stage.agent()
    await forget(stage.runtime, Scope(), "ada")
    erasing = asyncio.create_task(work(stage))
    stage.lines.append("ok")
    await stage.say(other, "Hello.")
    assert not erasing.done()
    with suppress(TimeoutError):
        await asyncio.wait_for(erasing, 20)
    assert await found(stage) == []


async def test_what_she_proposed_for_others_goes_and_what_cannot_go_is_counted(stage: Stage) -> None:
    user_id, _ = await ada(stage)
    agent_id = await stage.agent(("persona", "I am Nina."))
    state = await stage.state(agent_id)
    (block,) = state.blocks
    run = make.run(state.agent, id="run-ada", user_id=user_id, ended_at=9, status="completed")

    def write(tx: Transaction) -> None:
        runs.open_run(tx, run)
        draft = Draft(block.chain_id, block.organization_id, block.label, canary("wish"), block)
        propose(tx, draft, make.change_metadata(user_id, reason=canary("why")), None)
        # The agent noted something of its own in her turn, and she wrote the block herself once.
        noted = blocks.write(tx, block, "I am Nina. I had a talk.", make.change_metadata(agent_id, run_id=run.id))
        assert noted
        blocks.write(tx, noted, "I am Nina, and kind.", make.change_metadata(user_id))

    await stage.store.write(write)
    told = await forget(stage.runtime, Scope(), "ada")
    await work(stage)

    assert await found(stage) == []
    receipt = await find_receipt(stage.runtime, Scope(), told["id"])
    assert (agent_id, 1) in [(agent["id"], agent["versions"]) for agent in receipt["agents"]]
    assert receipt["remaining"] == {"commits.author_id": 1}
    assert receipt["removed"]["proposals"] == 1
    assert [block.value for block in (await stage.state(agent_id)).blocks] == ["I am Nina, and kind."]
    texts_kept = select(func.count()).where(is_in_chain(blobs))
    assert await stage.store.read(lambda tx: tx.all(texts_kept, {"chain_id": block.chain_id})[0][0]) == 3
    kept = await stage.store.read(lambda tx: history.page(tx, block.chain_id, label="persona"))
    texts = [await stage.store.read(lambda tx, v=v: history.text_at(tx, block.chain_id, "persona", v)) for v in kept]
    assert texts == ["I am Nina, and kind.", "I am Nina. I had a talk.", "I am Nina."]


class Outside:
    """An index elsewhere, which notes what it was told to remove."""

    name = "outside"

    def __init__(self) -> None:
        self.removed: dict[tuple[str, str], set[int]] = {}
        self.dropped: list[str] = []

    async def drop(self, space: str, _model: str) -> None:
        """Take note."""
        self.dropped.append(space)

    async def remove(self, space: str, model: str, documents: list[int]) -> None:
        """Take note."""
        self.removed.setdefault((space, model), set()).update(documents)


async def test_outside_indexes_are_told_of_an_archive_that_two_of_her_agents_share(stage: Stage) -> None:
    await ada(stage)
    agents = [await stage.agent(user="ada", name=name) for name in ("Ida", "Ira")]
    archive = await make.stored_archive(stage.store, (await stage.state(agents[0])).agent, canary("filed"))
    index, runtime = Outside(), stage.runtime
    runtime.indexes = {"outside": index}  # type: ignore[dict-item]
    runtime.indexing = replace(runtime.indexing, indexes=runtime.indexes, messages_index="outside")

    def share(tx: Transaction) -> None:
        archives.attach(tx, agents[1], archive.id)
        tx.run(text("UPDATE archives SET vector_db = 'outside'"))
        flush(tx, "passages", archive.id)
        batch = next_batch(tx, archive.id, "some/model", 10)
        assert batch is not None
        add_vectors(tx, batch, {}, 1)

    await stage.store.write(share)
    await forget(runtime, Scope(), "ada", with_agents=True)
    await work(stage)
    assert index.dropped == [archive.id]
    assert await found(stage) == []


async def test_outside_indexes_are_told_also_of_what_was_being_embedded(stage: Stage) -> None:
    _, agent_id = await ada(stage)
    await make.stored_messages(stage.store, make.message((await stage.state(agent_id)).agent, "Bob likes tea."))
    index, runtime = Outside(), stage.runtime
    runtime.indexes = {"outside": index}  # type: ignore[dict-item]
    runtime.indexing = replace(runtime.indexing, indexes=runtime.indexes, messages_index="outside")

    def embed(tx: Transaction) -> tuple[int, ...]:
        flush(tx, "messages", agent_id)
        batch = next_batch(tx, agent_id, "some/model", 10)
        assert batch is not None
        add_vectors(tx, batch, {}, 1)
        return tuple(number for number in batch.documents if number is not None)

    numbers = await stage.store.write(embed)
    seqs = text("SELECT seq FROM messages WHERE conversation_id = 'conv-ada'")
    hers = {row.seq for row in await stage.store.read(lambda tx: tx.all(seqs))}
    busy = Job("search.embed", Scope().organization_id, key=f"search.embed:{agent_id}")
    await stage.store.write(lambda tx: jobs.add(tx, busy))
    await stage.store.write(lambda tx: jobs.claim_one(tx, "other", busy.id))
    await forget(runtime, Scope(), "ada")
    job = await next_job(stage, free=False)
    assert job
    with pytest.raises(Unavailable, match="being embedded"):
        await _ERASE.run(runtime, job, lambda _done, _total: None)
    assert index.removed == {}
    await stage.store.write(lambda tx: tx.run(text("UPDATE jobs SET status = 'done' WHERE kind = 'search.embed'")))
    await stage.store.write(lambda tx: jobs.put_back(tx, job))

    await work(stage)

    assert await found(stage) == []
    assert index.removed == {(agent_id, "some/model"): hers}
    assert hers < set(numbers)


def test_every_column_with_somebodys_id_is_erased_blanked_or_counted() -> None:
    """A new table with such a column is found by what its column says of erasure."""
    people = ("user_id", "sender_id", "created_by", "updated_by", "author_id", "approved_by", "resolved_by")
    known = {*columns_to_blank(), *columns_that_remain()}
    left = {
        f"{c.table.name}.{c.name}"
        for t in metadata.sorted_tables
        for c in t.columns
        if c.name in people and c not in known
    }
    assert left == {"messages.user_id", "messages.sender_id", "passages.user_id", "runs.user_id", "jobs.user_id"}
    assert {table.name for table in tables_of_rows()} == {"messages", "passages", "runs"}
    assert [str(column) for column in columns_that_remain()] == ["commits.author_id"]
