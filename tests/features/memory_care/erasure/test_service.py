"""Forgetting a user step by step.

A killed erasure is finished by the next server, and others write meanwhile.
"""

import asyncio
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from filelock import FileLock
from sqlalchemy import Table, func, insert, select, text

from ricordo.domain.block import Chain
from ricordo.domain.git_objects import GitObject
from ricordo.domain.job import Job, JobHandler
from ricordo.domain.message import CompactionPart, TextPart, ToolReturnPart
from ricordo.domain.remote import SYNC, Remote
from ricordo.domain.scope import Actor, Scope
from ricordo.errors import NotFound, Unavailable
from ricordo.features import FEATURES
from ricordo.features.memory_care.erasure import queries, receipts
from ricordo.features.memory_care.erasure.jobs import HANDLERS
from ricordo.features.memory_care.erasure.queries import (
    COVERED,
    JOB,
    columns_that_remain,
    columns_to_blank,
    tables_of_rows,
)
from ricordo.features.memory_care.erasure.service import find_receipt, forget
from ricordo.features.sync.git.adoption import adopt
from ricordo.features.sync.git.push import Push
from ricordo.features.sync.git.repository import refreshed
from ricordo.memory import user_memory
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.plugins import load_plugins
from ricordo.search.index import MessageFilter, insert_messages, insert_passages
from ricordo.search.vectors import add_vectors, next_batch
from ricordo.storage import (
    agent_access,
    archives,
    blocks,
    conversations,
    history,
    jobs,
    remotes,
    runs,
    users,
    versions,
)
from ricordo.storage import versions as version_rows
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.engine.work_folders import FOLDER
from ricordo.storage.schema.columns import metadata, seq, strings
from ricordo.storage.schema.memory_tables import blobs, is_in_chain
from tests.conftest import BOTH
from tests.seams import make
from tests.seams.stage import Stage
from tests.seams.stores import flush, killed_after
from tests.support.canaries import canary, in_tables
from tests.support.git import commit_of, fsck

DATABASES = BOTH
SCOPE = Scope()
_ERASE, _SWEEP = HANDLERS


async def ada(stage: Stage, *, size: int = 3) -> tuple[str, str]:
    """Make a user with memory, a conversation and passages; return her id and the agent's."""
    state = await stage.state(await stage.agent())
    archive = await make.stored_archive(stage.store, state.agent, "Tea grows in Darjeeling.")

    def write(tx: Transaction) -> str:
        owned = user_memory.open_memory(tx, SCOPE, "ada", makes=True)
        for number in range(size):
            user_memory.put(tx, owned, "human", f"{canary('block')} {number}", owned.owner)
        own = make.conversation(
            state.agent, id="conv-ada", user_id=owned.user.id, message_count=size
        )
        conversations.insert_one(tx, own)
        insert_messages(
            tx,
            [
                make.message(state.agent, f"{canary('said')} {n}", conversation_id="conv-ada")
                for n in range(size)
            ],
        )
        theirs = make.passage(
            archive, canary("passage"), user_id=owned.user.id, tags=("tea", canary("tag"))
        )
        insert_passages(tx, archive, [theirs, make.passage(archive, "Tea.", tags=("tea",))])
        return owned.user.id

    return await stage.store.write(write), state.agent.id


async def next_job(stage: Stage, *, free: bool = True) -> Job | None:
    """Claim the waiting erasure, as the worker of the next server does."""
    if free:
        await stage.store.write(jobs.take_over)

    def claim(tx: Transaction) -> Job | None:
        row = tx.first(text(f"SELECT id FROM jobs WHERE kind = '{JOB}' AND status = 'waiting'"))  # noqa: S608
        return jobs.claim_one(tx, "worker", row.id) if row else None

    return await stage.store.write(claim)


async def run(stage: Stage, job: Job | None, handler: JobHandler = _ERASE) -> None:
    assert job is not None
    await handler.run(stage.runtime, job, lambda _done, _total: None)


async def erase(stage: Stage) -> None:
    job = await next_job(stage)
    await run(stage, job)
    await stage.store.write(lambda tx: jobs.finish(tx, job))  # type: ignore[arg-type]


async def erase_killed_after_any_write(stage: Stage) -> int:
    """Erase with a server that is killed one write later each time; return the number of kills."""
    kills = 0
    while job := await next_job(stage):
        try:
            with killed_after(stage.runtime, kills + 1):
                await run(stage, job)
        except asyncio.CancelledError:
            kills += 1
            assert kills < 150
            assert await stage.store.read(lambda tx: users.find(tx, SCOPE, "ada")) is None
        else:
            await stage.store.write(lambda tx, job=job: jobs.finish(tx, job))
    return kills


async def erase_beside(stage: Stage, running: Job) -> None:
    """Run the waiting erasure while another job runs.

    The erasure cancels that job, and continues once the job's worker has released it.
    """
    erasure = asyncio.create_task(run(stage, await next_job(stage, free=False)))
    async with asyncio.timeout(20):
        while not erasure.done() and not await stage.store.write(
            lambda tx: jobs.release(tx, running)
        ):
            pass  # during each write other tasks run
        assert not erasure.done()
        await erasure


async def remaining_texts(stage: Stage) -> list[str]:
    return await stage.store.read(in_tables)


async def all_jobs(stage: Stage, kind: str) -> list[Job]:
    return await stage.store.read(lambda tx: jobs.page(tx, SCOPE, Page(limit=100), kind=kind))


def add_remotes(tx: Transaction, kind: str, *addresses: str) -> list[Job]:
    """Add remotes of Ada's memory; return the jobs that sync them."""
    chain = user_memory.open_memory(tx, SCOPE, "ada").chain
    added = []
    for number, address in enumerate(addresses):
        remote = Remote(
            f"remote-{number}", chain.organization_id, chain.id, kind, address, created_at=1
        )
        remotes.insert_one(tx, remote)
        added.append(remote.job())
        jobs.add(tx, added[-1])
    return added


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricordo.features.memory_care.erasure.jobs._PAUSE", 0)


async def test_an_erasure_killed_after_any_write_is_completed_and_counted_once(
    stage: Stage, tmp_path: Path
) -> None:
    """Agents, archives and a remote are deleted too, and hidden at once.

    Data that another agent has stays.
    """
    user_id, _ = await ada(stage)
    own = [
        await stage.agent(("human", canary("own")), user="ada", name=name)
        for name in ("Ida", "Ira")
    ]
    ida = (await stage.state(own[0])).agent
    filed, shared = [
        await make.stored_archive(stage.store, ida, text) for text in (canary("filed"), "Assam.")
    ]
    other = await stage.agent(name="Bo")
    follower, elsewhere = (
        stage.runtime.settings.data_dir / "remotes" / "ada.json",
        tmp_path / "elsewhere.json",
    )
    follower.parent.mkdir(parents=True)
    follower.write_text(canary("remote"))

    def share(tx: Transaction) -> None:
        archives.attach(tx, own[1], filed.id)
        archives.attach(tx, other, shared.id)
        add_remotes(tx, "notebook", str(follower), str(elsewhere))

    await stage.store.write(share)
    state = await forget(stage.runtime, SCOPE, "ada", with_agents=True)
    assert (state["status"], receipts.find(tmp_path, state["id"])) == ("running", None)
    assert (await forget(stage.runtime, SCOPE, "ada"))["id"] == state["id"]
    for agent_id in own:
        with pytest.raises(NotFound):
            await stage.state(agent_id)
    with pytest.raises(NotFound):
        await stage.store.read(lambda tx: archives.get(tx, SCOPE, filed.id))

    assert await erase_killed_after_any_write(stage) > 10

    assert await remaining_texts(stage) == []
    assert not follower.exists()
    # A sync would create the file again.
    assert await all_jobs(stage, SYNC) == []
    assert (
        await stage.store.read(lambda tx: archives.get(tx, SCOPE, shared.id))
    ).passage_count == 1
    receipt = await find_receipt(stage.runtime, SCOPE, state["id"])
    assert receipt == receipts.find(stage.runtime.settings.data_dir, state["id"])
    expected = {
        "messages": 5,
        "passages": 2,
        "conversations": 3,
        "chains": 3,
        "commits": 5,
        "blocks": 3,
        "users": 1,
    }
    expected |= {"agents": 2, "archives": 1, "memory_remotes": 2}
    assert {name: receipt["removed"].get(name) for name in expected} == expected
    assert receipt["subject"] == receipts.subject_of(user_id)
    assert {agent["id"] for agent in receipt["agents"] if agent["is_deleted"]} == set(own)
    assert f"The memory's notebook remote at {elsewhere} keeps a copy." in receipt["elsewhere"]
    assert not any(str(follower) in line for line in receipt["elsewhere"])
    with pytest.raises(NotFound):
        await find_receipt(stage.runtime, Scope(organization_id="org-other"), state["id"])


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "running"])
async def test_a_later_request_deletes_the_agents_that_the_first_one_left(
    is_done: bool, stage: Stage, tmp_path: Path
) -> None:
    await ada(stage)
    own, reused, opened = [
        await stage.agent(("human", canary("own")), user="ada", name=name)
        for name in ("Ida", "Ira", "Ina")
    ]
    first = await forget(stage.runtime, SCOPE, "ada")
    if is_done:
        await erase(stage)

    def use(tx: Transaction) -> None:
        insert_messages(tx, [make.message(state.agent, "Hello.", created_at=tx.clock.now() + 1)])
        bo = users.find_or_make(tx, SCOPE, "bo")
        agent_access.attach_user(tx, opened, bo.id)

    state = await stage.state(reused)
    await stage.store.write(use)
    second = await forget(stage.runtime, SCOPE, "ada", with_agents=True)
    assert second["id"] != first["id"]
    with pytest.raises(NotFound):
        await stage.state(own)
    assert (await forget(stage.runtime, SCOPE, "ada", with_agents=True))["id"] == second["id"]
    assert (await forget(stage.runtime, SCOPE, "ada"))["id"] == second["id"]

    for _ in range(1 if is_done else 2):
        await erase(stage)

    assert await next_job(stage) is None
    receipt = await find_receipt(stage.runtime, SCOPE, second["id"])
    assert {agent["id"]: (agent["is_deleted"], agent["stays"]) for agent in receipt["agents"]} == {
        own: (True, None),
        reused: (False, "it was used after the user was forgotten"),
        opened: (False, "others may use it"),
    }
    assert receipt["removed"]["agents"] == 1
    assert receipts.find(tmp_path, first["id"]) is not None
    for agent_id in (reused, opened):
        assert await stage.state(agent_id)


async def test_a_receipt_lists_what_every_sweep_removed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.features.memory_care.erasure.work._TRIES", 2)
    await ada(stage)
    state = await forget(stage.runtime, SCOPE, "ada")
    work = stage.runtime.settings.data_dir / FOLDER
    killed, running = (
        [work / f"copy-0000000{number}" for number in range(3)],
        work / "copy-0000000a",
    )
    for folder in (*killed, running):
        folder.mkdir(parents=True)
        (folder / "ricordo.db").write_text(canary("copied"))
    with FileLock(running / ".lock"), pytest.raises(Unavailable, match="copy of the database"):
        await run(stage, await next_job(stage))
    assert list(work.glob("copy-*")) == [running]

    await erase(stage)

    files = (await find_receipt(stage.runtime, SCOPE, state["id"]))["files"]
    assert [name for name in files if FOLDER in name] == [
        f"{FOLDER}/{path.name}" for path in (*killed, running)
    ]
    assert list(work.glob("copy-*")) == []


async def test_an_erasure_whose_job_was_deleted_or_cancelled_is_resumed(
    stage: Stage,
) -> None:
    await ada(stage)
    state = await forget(stage.runtime, SCOPE, "ada")
    (job,) = await all_jobs(stage, JOB)
    await stage.store.write(lambda tx: jobs.cancel(tx, SCOPE, job.id))
    await run(stage, job, _SWEEP)
    again = [one for one in await all_jobs(stage, JOB) if one.status == "waiting"]
    assert [one.payload["id"] for one in again] == [state["id"]]
    for one in [job, *again]:
        await stage.store.write(lambda tx, one=one: jobs.remove(tx, SCOPE, one.id))
    await run(stage, job, _SWEEP)
    await erase(stage)
    await run(stage, job, _SWEEP)
    assert await next_job(stage) is None
    assert await remaining_texts(stage) == []


async def test_erasure_cleans_windows_summaries_and_tags_of_others(stage: Stage) -> None:
    user_id, agent_id = await ada(stage)
    agent = (await stage.state(agent_id)).agent
    hers = make.message(agent, canary("shared"), user_id=user_id)
    compaction = CompactionPart("window", (hers.id,), 9, 3, 100, 3, 2)
    summary = make.message(
        agent,
        role="summary",
        parts=(TextPart(f"She said {canary('summed')}."), compaction),
        created_at=stage.store.clock.now(),
    )
    early = make.message(agent, role="summary", parts=(TextPart("Before her."),), created_at=1)
    quoted = (
        ToolReturnPart(
            "call-1", "conversation_search", "success", canary("quoted"), sources=(hers.id,)
        ),
        ToolReturnPart(
            "call-2", "look", "success", canary("seen"), stdout=(canary("out"),), sources=(hers.id,)
        ),
        ToolReturnPart(
            "call-3", "conversation_search", "success", "Bob likes tea.", sources=("message-bob",)
        ),
    )
    quoting = make.message(agent, role="tool", parts=quoted)
    bob = make.message(agent, "I am Bob.")
    await make.stored_messages(stage.store, hers, early, summary, quoting, bob)
    before = await stage.thread(agent_id)
    window = [*before.window, summary.id, hers.id, quoting.id, bob.id]
    await stage.store.write(
        lambda tx: conversations.save_window(tx, before.id, window, "key", added=5)
    )

    await forget(stage.runtime, SCOPE, "ada")
    await erase(stage)

    assert await remaining_texts(stage) == []
    after = await stage.thread(agent_id)
    assert after.window == (*before.window, summary.id, quoting.id, bob.id)
    assert after.message_count == before.message_count + 4
    kept = {message.id: message for message in await stage.history(agent_id)}
    assert (kept[summary.id].text, kept[early.id].text) == (COVERED, "Before her.")
    assert [part.content for part in kept[quoting.id].tool_returns] == [
        COVERED,
        COVERED,
        "Bob likes tea.",
    ]
    assert "I am Bob." in kept[bob.id].text
    assert kept[after.window[0]].text.startswith("You remember.")
    (archive,) = (await stage.state(agent_id)).archives
    assert (archive.passage_count, archive.tags) == (2, ("tea",))


async def test_search_still_finds_the_results_beside_an_erased_quote(stage: Stage) -> None:
    """Every choice of quoting results among three results of one message."""
    user_id, agent_id = await ada(stage)
    agent = (await stage.state(agent_id)).agent
    hers = make.message(agent, canary("shared"), user_id=user_id)
    words = ("Tulips", "Ferries", "Pianos")
    choices = list(product([False, True], repeat=len(words)))
    stored: dict[str, tuple[bool, ...]] = {}
    tool_messages = []
    for choice in choices:
        parts = tuple(
            ToolReturnPart(
                f"call-{number}",
                "look",
                "success",
                canary("seen") if is_quote else f"{words[number]} in the garden.",
                sources=(hers.id,) if is_quote else ("message-bob",),
            )
            for number, is_quote in enumerate(choice)
        )
        message = make.message(agent, role="tool", parts=parts)
        tool_messages.append(message)
        stored[message.id] = choice
    await make.stored_messages(stage.store, hers, *tool_messages)

    await forget(stage.runtime, SCOPE, "ada")
    await erase(stage)

    assert await remaining_texts(stage) == []
    recall = stage.runtime.recall_for(SCOPE)
    for number, word in enumerate(words):
        hits = await recall.messages(word, MessageFilter((agent_id,)), 20, mode="fts")
        expected = {id for id, choice in stored.items() if not choice[number]}
        # Messages stored next to a hit are found too.
        assert {hit.message.id for hit in hits} >= expected
    covered_words = await recall.messages(COVERED, MessageFilter((agent_id,)), 20, mode="fts")
    assert covered_words == []
    rows = await stage.store.read(lambda tx: tx.all(text("SELECT id, text FROM messages")))
    assert {row.id: row.text for row in rows if row.id in stored} == {
        id: "\n".join(
            f"{word} in the garden."
            for word, is_quote in zip(words, choice, strict=True)
            if not is_quote
        )
        for id, choice in stored.items()
    }


@pytest.mark.parametrize("kind", [SYNC, "search.embed"])
async def test_erasure_stops_jobs_that_copy_the_users_data(stage: Stage, kind: str) -> None:
    await ada(stage)
    agent_id = await stage.agent(user="ada", name="Ida")
    archive = await make.stored_archive(
        stage.store, (await stage.state(agent_id)).agent, canary("filed")
    )

    def claim(tx: Transaction) -> Job | None:
        failed, sync = add_remotes(tx, "git", "https://0.example", "https://1.example")
        embed = Job(
            "search.embed",
            SCOPE.organization_id,
            {"owner_id": archive.id},
            key=f"search.embed:{archive.id}",
        )
        jobs.add(tx, embed)
        if claimed := jobs.claim_one(tx, "other", failed.id):
            jobs.fail(
                tx, claimed, {"type": "Unavailable", "message": f"{canary('file')} is no block."}
            )
        return jobs.claim_one(tx, "other", sync.id if kind == SYNC else embed.id)

    running = await stage.store.write(claim)
    assert running
    await forget(stage.runtime, SCOPE, "ada", with_agents=True)
    await erase_beside(stage, running)
    assert running.id not in {job.id for job in await all_jobs(stage, kind)}
    assert await remaining_texts(stage) == []


async def test_proposals_of_an_erased_user_are_deleted_and_the_rest_is_counted(
    stage: Stage,
) -> None:
    user_id, _ = await ada(stage)
    agent_id = await stage.agent(("persona", "I am Nina."))
    state = await stage.state(agent_id)
    (block,) = state.blocks
    own_run = make.run(state.agent, id="run-ada", user_id=user_id, ended_at=9, status="completed")

    def write(tx: Transaction) -> None:
        runs.open_run(tx, own_run)
        draft = ProposalDraft(block.chain_id, block.label, canary("wish"), block)
        propose(tx, draft, make.change_metadata(user_id, reason=canary("why")), None)
        # In Ada's turn the agent stored a note, and later Ada wrote the block herself.
        noted = blocks.write(
            tx, block, "I am Nina. I had a talk.", make.change_metadata(agent_id, run_id=own_run.id)
        )
        assert noted
        blocks.write(tx, noted, "I am Nina, and kind.", make.change_metadata(user_id))

    await stage.store.write(write)
    state_of = await forget(stage.runtime, SCOPE, "ada")
    await erase(stage)

    assert await remaining_texts(stage) == []
    receipt = await find_receipt(stage.runtime, SCOPE, state_of["id"])
    assert (agent_id, 1) in [(agent["id"], agent["versions"]) for agent in receipt["agents"]]
    assert (receipt["remaining"], receipt["removed"]["proposals"]) == ({"commits.author_id": 1}, 1)
    texts_kept = select(func.count()).where(is_in_chain(blobs))
    assert (
        await stage.store.read(lambda tx: tx.all(texts_kept, {"chain_id": block.chain_id})[0][0])
        == 3
    )
    kept = await stage.store.read(lambda tx: history.page(tx, block.chain_id, label="persona"))
    texts = [
        await stage.store.read(lambda tx, v=v: history.text_at(tx, block.chain_id, "persona", v))
        for v in kept
    ]
    assert texts == ["I am Nina, and kind.", "I am Nina. I had a talk.", "I am Nina."]


async def test_a_merged_text_survives_the_erasure_of_its_proposal(
    stage: Stage, tmp_path: Path
) -> None:
    store, bob = stage.store, Actor("user", "user-bob", "Bob")
    chain, theirs, alone = make.chain("user", "user-1"), "Name: Ada B.", "Name: Augusta"
    await store.write(lambda tx: versions.insert_chain(tx, chain))

    async def push(before: Chain, tip: bytes, new: dict[bytes, GitObject]) -> Chain:
        adoption = Push(new, lambda _: None).adoption(before.head, tip)
        return await store.write(
            lambda tx: adopt(tx, Scope(), chain.id, adoption, make.change_metadata())
        )

    root, new = commit_of({"human": "Name: Ada"})
    after = await push(chain, root, new)

    def offer(tx: Transaction) -> list[bytes]:
        metadata = replace(make.change_metadata(), author=bob)
        made = []
        for label, words in (("human", theirs), ("other", alone)):
            block = blocks.labelled(tx, chain.id, label)
            propose(tx, ProposalDraft(chain.id, label, words, block), metadata)
            made.append(version_rows.put_text(tx, chain.id, words, None)[0])
        return made

    kept, gone = await store.write(offer)
    # The owner fetches the branch of Bob's proposal, and merges it with another text.
    side, more = commit_of({"human": theirs}, root)
    tip, merge = commit_of({"human": "Name: Ada Byron"}, root, side)
    await push(after, tip, new | more | merge)

    done = receipts.Erasure(
        id="receipt-1",
        user_id=bob.id,
        organization_id=SCOPE.organization_id,
        subject="",
        names=[],
        asked_at="",
    )
    found, _ = await store.read(lambda tx: queries.find_portion(tx, queries.proposals_of(bob.id)))
    await store.write(lambda tx: queries.purge_proposals(tx, done, found))
    assert done.removed == {"proposals": 2, "blobs": 1}
    assert await store.read(lambda tx: version_rows.read_text(tx, chain.id, kept)) == theirs
    with pytest.raises(NotFound):
        await store.read(lambda tx: version_rows.read_text(tx, chain.id, gone))
    assert fsck(await refreshed(store, tmp_path, chain.id)) == ""


class Outside:
    """An outside index that records the removals."""

    name = "outside"

    def __init__(self, stage: Stage) -> None:
        self.removed: dict[tuple[str, str], set[int]] = {}
        self.dropped: list[str] = []
        stage.runtime.indexes = {"outside": self}  # type: ignore[dict-item]
        stage.runtime.indexing = replace(
            stage.runtime.indexing, indexes=stage.runtime.indexes, messages_index="outside"
        )

    async def drop(self, partition: str, _model: str) -> None:
        self.dropped.append(partition)

    async def remove(self, partition: str, model: str, documents: list[int]) -> None:
        self.removed.setdefault((partition, model), set()).update(documents)


def embed(tx: Transaction, owner_id: str) -> set[int]:
    """Store a partition's vectors in an outside index; return the numbers of documents."""
    flush(tx, owner_id)
    batch = next_batch(tx, owner_id, "some/model", 10)
    assert batch is not None
    add_vectors(tx, batch, {}, 1)
    return {part[0] for part in batch.documents if part is not None}


async def test_erasure_removes_entries_from_external_vector_indexes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.features.memory_care.erasure.work._TRIES", 2)
    _, agent_id = await ada(stage)
    await make.stored_messages(
        stage.store, make.message((await stage.state(agent_id)).agent, "Bob likes tea.")
    )
    own = [await stage.agent(user="ada", name=name) for name in ("Ida", "Ira")]
    archive = await make.stored_archive(
        stage.store, (await stage.state(own[0])).agent, canary("filed")
    )
    outside = Outside(stage)

    def lay_out(tx: Transaction) -> set[int]:
        archives.attach(tx, own[1], archive.id)
        tx.run(text(f"UPDATE archives SET vector_db = 'outside' WHERE id = '{archive.id}'"))  # noqa: S608
        embed(tx, archive.id)
        busy = Job("search.embed", SCOPE.organization_id, key=f"search.embed:{agent_id}")
        jobs.add(tx, busy)
        jobs.claim_one(tx, "other", busy.id)
        return embed(tx, agent_id)

    numbers = await stage.store.write(lay_out)
    seqs = text("SELECT seq FROM messages WHERE conversation_id = 'conv-ada'")
    hers = {row.seq for row in await stage.store.read(lambda tx: tx.all(seqs))}
    await forget(stage.runtime, SCOPE, "ada", with_agents=True)
    job = await next_job(stage, free=False)
    with pytest.raises(Unavailable, match="being embedded"):
        await run(stage, job)
    assert outside.removed == {}
    await stage.store.write(
        lambda tx: tx.run(text("UPDATE jobs SET status = 'done' WHERE kind = 'search.embed'"))
    )

    await erase(stage)

    assert await remaining_texts(stage) == []
    assert outside.dropped == [archive.id]
    assert outside.removed == {(agent_id, "some/model"): hers}
    assert hers < numbers


async def test_tables_of_plugins_are_erased_as_their_columns_declare(stage: Stage) -> None:
    theirs = Table(
        "of_a_plugin",
        metadata,
        seq(),
        *strings("user_id"),
        *strings("said"),
        info={"erasure": "delete"},
    )
    others = Table(
        "of_another",
        metadata,
        seq(),
        *strings("seen_by", erasure="blank"),
        *strings("said"),
        info={"erasure": "keep"},
    )
    tables = [theirs, others]
    try:
        user_id, _ = await ada(stage)

        def fill(tx: Transaction) -> None:
            metadata.create_all(tx.connection, tables=tables)
            tx.run(insert(theirs), [{"user_id": who, "said": who} for who in (user_id, "user-bob")])
            tx.run(
                insert(others), [{"seen_by": who, "said": "Tea."} for who in (user_id, "user-bob")]
            )

        await stage.store.write(fill)
        await forget(stage.runtime, SCOPE, "ada")
        await erase(stage)
        kept = [
            await stage.store.read(lambda tx, t=t: tx.all(select(t).order_by(t.c.seq)))
            for t in tables
        ]
        assert [tuple(row)[1:] for rows in kept for row in rows] == [
            ("user-bob", "user-bob"),
            (None, "Tea."),
            ("user-bob", "Tea."),
        ]
    finally:
        for table in tables:
            metadata.remove(table)
            await stage.store.write(lambda tx, table=table: table.drop(tx.connection))


def test_every_column_with_somebodys_id_is_erased_blanked_or_counted() -> None:
    load_plugins(FEATURES).tables()
    people = (
        "user_id",
        "sender_id",
        "created_by",
        "updated_by",
        "author_id",
        "approved_by",
        "resolved_by",
    )
    known = {*columns_to_blank(), *columns_that_remain()}
    every = [
        column
        for table in metadata.sorted_tables
        for column in table.columns
        if column.name in people
    ]
    left = {str(column) for column in every if column not in known}
    own = {
        "audit_people",
        "batch_items",
        "decision_links",
        "fact_egress",
        "fact_marks",
        "fact_policies",
        "files",
        "files_agents",
        "folders",
        "forget_requests",
        "guardianships",
        "honcho_sessions",
        "import_parts",
        "imported_items",
        "learner_choices",
        "notices",
        "notification_preferences",
        "openai_chats",
        "openwebui_items",
        "owner_visits",
        "schedules",
        "sign_in_links",
        "sleep_counters",
        "sleep_marks",
        "sleep_transcripts",
        "task_runs",
        "user_facts",
        "workspace_files",
    }
    rows = {
        "api_keys.user_id",
        "messages.user_id",
        "messages.sender_id",
        "passages.user_id",
        "runs.user_id",
    }
    rows |= {f"{name}.user_id" for name in own}
    assert left == {
        *rows,
        "agents_users.user_id",
        "blocks_users.user_id",
        "jobs.user_id",
        "passages_tags.user_id",
    }
    assert {table.name for table in tables_of_rows()} == {
        "api_keys",
        "messages",
        "passages",
        "runs",
        *own,
    }
    assert [str(column) for column in columns_that_remain()] == ["commits.author_id"]
