"""Jobs that read facts: each range of messages is read once, wherever they are killed."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, text

from ricordo.domain.job import Job
from ricordo.domain.message import TextPart
from ricordo.domain.scope import LOCAL_ORGANIZATION, Scope, User
from ricordo.features.knowledge.facts import jobs, queries
from ricordo.features.knowledge.facts.extraction import drafts_in
from ricordo.features.knowledge.facts.records import FactDraft
from ricordo.search import index
from ricordo.storage import jobs as job_rows
from ricordo.storage import messages, users
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.core_tables import conversations
from tests.agents.conftest import open_stage, stage
from tests.seams.server import LIMIT
from tests.seams.stage import Stage
from tests.seams.stores import Killed, killed_at

__all__ = ["open_stage", "stage"]
MOST_STATEMENTS = 60


async def user_of(stage: Stage, name: str) -> User:
    return await stage.store.write(lambda tx: users.find_or_make(tx, Scope(), name))


async def run_once(stage: Stage, agent: str, user: User) -> None:
    """Do the job of this user and agent, as a worker does."""

    def claim(tx: Transaction) -> Job:
        tx.run(text("DELETE FROM jobs"))
        payload = {"user_id": user.id, "agent_id": agent}
        job = job_rows.add(tx, Job(jobs.EXTRACT, LOCAL_ORGANIZATION, payload))
        assert job
        claimed = job_rows.claim_one(tx, "worker-1", job.id)
        assert claimed
        return claimed

    job = await stage.store.write(claim)
    await jobs.extract(stage.runtime, job, lambda _done, _total: None)


@pytest.fixture(autouse=True)
def by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RICORDO_FACTS", "direct")
    monkeypatch.setenv("RICORDO_FACTS_BY", "rules")
    monkeypatch.setenv("RICORDO_FACTS_IDLE_SECONDS", "0")


async def evidence_of(stage: Stage, user: User) -> list[tuple[str, int]]:
    """Return the user's current facts, each with its number of quotes."""
    facts = await stage.store.read(lambda tx: queries.of_states(tx, user.id, "current"))
    return sorted((fact.sentence, len(fact.evidence)) for fact in facts)


@pytest.mark.parametrize(
    "wanted", [pytest.param(24, id="short"), pytest.param(200, id="long", marks=pytest.mark.soak)]
)
async def test_a_killed_job_reads_each_range_of_messages_once(
    stage: Stage, store: SqliteStore, wanted: int
) -> None:
    """One agent has two users; each job is killed at each of its statements."""
    agent = await stage.agent()
    people = [await user_of(stage, name) for name in ("ada", "bob")]
    kills = number = 0
    while kills < wanted:
        user = people[number % 2]
        for each in people:
            scope = Scope(subject_id=each.id, user_id=each.id)
            await stage.say(agent, f"I have {number + 2} xq{each.name}{number}dogs.", scope=scope)
        before = [await evidence_of(stage, each) for each in people]
        for place in range(1, MOST_STATEMENTS):
            try:
                with killed_at(store, place):
                    await run_once(stage, agent, user)
                break
            except Killed:
                kills += 1
            after = [await evidence_of(stage, each) for each in people]
            assert after == before, place
        for each in people:
            await run_once(stage, agent, each)
            await run_once(stage, agent, each)
        number += 1
    for each, other in zip(people, reversed(people), strict=True):
        read = await evidence_of(stage, each)
        # Each message is one fact with one quote: none was lost, none was read twice.
        assert [count for _, count in read] == [1] * number
        assert {f"xq{each.name}{place}dogs" in str(read) for place in range(number)} == {True}
        assert f"xq{other.name}" not in str(read)


async def test_facts_of_two_users_of_one_agent_are_never_mixed(stage: Stage) -> None:
    agent = await stage.agent()
    people = [await user_of(stage, name) for name in ("ada", "bob")]
    canaries = ("Xqadaz", "Xqbobz")
    for user, canary in zip(people, canaries, strict=True):
        scope = Scope(subject_id=user.id, user_id=user.id)
        for sentence in ("I live in {}.", "My favourite food is {}.", "My sister's name is {}."):
            await stage.say(agent, sentence.format(canary), scope=scope)
    for user in people:
        await run_once(stage, agent, user)
    for user, own, other in zip(people, canaries, reversed(canaries), strict=True):
        shown = str(await evidence_of(stage, user))
        assert shown.count(own) == 3
        assert other not in shown


async def test_text_forgotten_during_reading_becomes_no_fact(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await stage.agent()
    user = await user_of(stage, "ada")
    await stage.say(
        agent,
        "I live in Xqgraz. I like climbing.",
        scope=Scope(subject_id=user.id, user_id=user.id),
    )
    loop = asyncio.get_running_loop()

    def forget(tx: Transaction) -> None:
        said = messages.between(tx, thread, 0, 10_000, 10)
        for message in said:
            if "Xqgraz" in message.text:
                part = TextPart("[forgotten] I like climbing.")
                index.rewrite_message(tx, replace(message, parts=(part,)))

    def slowly(*arguments: Any) -> list[FactDraft]:
        """Read the message in the worker's thread, and forget its text before returning."""
        drafts = drafts_in(*arguments)
        asyncio.run_coroutine_threadsafe(stage.store.write(forget), loop).result(LIMIT)
        return drafts

    find = select(conversations.c.id).where(conversations.c.user_id == user.id)
    thread = await stage.store.read(lambda tx: tx.all(find)[0].id)
    monkeypatch.setattr(jobs, "drafts_in", slowly)
    await run_once(stage, agent, user)
    assert await evidence_of(stage, user) == [("I like climbing.", 1)]


async def test_a_failed_reading_is_retried_after_an_hour(stage: Stage) -> None:
    agent = await stage.agent()
    user = await user_of(stage, "ada")
    await stage.say(agent, "I live in Graz.", scope=Scope(subject_id=user.id, user_id=user.id))
    find = Job(jobs.FIND, LOCAL_ORGANIZATION)
    waiting = text("SELECT id FROM jobs WHERE status = 'waiting'")
    counts = []
    for ended_ago in (None, 1, 3_601):

        def lay_out(tx: Transaction, ended_ago: int | None = ended_ago) -> None:
            tx.run(text("DELETE FROM jobs"))
            if ended_ago is None:
                return
            key = f"{jobs.EXTRACT}:{user.id}:{agent}"
            job = job_rows.add(tx, Job(jobs.EXTRACT, LOCAL_ORGANIZATION, {}, key=key))
            assert job
            claimed = job_rows.claim_one(tx, "worker-1", job.id)
            assert claimed
            job_rows.fail(tx, claimed, {"type": "Unavailable", "message": "No."})
            ended_at = stage.store.clock.now() - ended_ago * 1_000_000
            tx.run(text("UPDATE jobs SET ended_at = :ended_at"), {"ended_at": ended_at})

        await stage.store.write(lay_out)
        await jobs.find_unread(stage.runtime, find, lambda _done, _total: None)
        counts.append(len(await stage.store.read(lambda tx: tx.all(waiting))))
    assert counts == [1, 0, 1]


async def test_no_job_is_added_for_an_agent_whose_facts_are_off(stage: Stage) -> None:
    """Its messages stay unread, so it would get another job each minute."""
    agent = await stage.agent(metadata={"facts": "off"})
    user = await user_of(stage, "ada")
    await stage.say(agent, "I live in Graz.", scope=Scope(subject_id=user.id, user_id=user.id))
    find = Job(jobs.FIND, LOCAL_ORGANIZATION)
    await jobs.find_unread(stage.runtime, find, lambda _done, _total: None)
    waiting = text("SELECT id FROM jobs WHERE kind = :kind")
    assert await stage.store.read(lambda tx: tx.all(waiting, {"kind": jobs.EXTRACT})) == []


async def test_a_late_job_does_not_move_the_read_mark_back(stage: Stage) -> None:
    agent = await stage.agent()
    user = await user_of(stage, "ada")
    scope = Scope(subject_id=user.id, user_id=user.id)
    await stage.say(agent, "I live in Graz.", scope=scope)

    def work_of(tx: Transaction) -> Any:
        job = Job(jobs.EXTRACT, LOCAL_ORGANIZATION, {"user_id": user.id, "agent_id": agent})
        return jobs._work_of(tx, job, 0, tx.clock.now())

    work = await stage.store.read(work_of)
    (range_,) = work.ranges
    reading = work.reading_of([range_])
    drafts = jobs._drafts_by_rules(range_)
    # Two jobs that read the same messages.
    for expected in (1, 1):
        await stage.store.write(lambda tx: jobs._file(tx, reading, drafts, [range_]))
        assert await evidence_of(stage, user) == [("I live in Graz.", expected)]
