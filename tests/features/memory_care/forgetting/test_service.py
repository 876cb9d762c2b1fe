"""Forgetting one thing step by step.

A killed removal is finished later, and a repeated one changes nothing.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from ricordo.agents.lifecycle import BlockSpec
from ricordo.domain.block import NEVER_REMEMBER
from ricordo.domain.ids import new_id
from ricordo.domain.job import Job
from ricordo.domain.scope import ROLE_SCOPES, Actor, Scope
from ricordo.errors import Conflict, Forbidden, Invalid, NotFound
from ricordo.features.knowledge.facts import queries as fact_queries
from ricordo.features.knowledge.facts.forgetting import SOURCE
from ricordo.features.knowledge.facts.records import Evidence, UserFact
from ricordo.features.memory_care.forgetting import queries, service
from ricordo.features.memory_care.forgetting.belonging_queries import Belongings
from ricordo.features.memory_care.forgetting.jobs import HANDLERS, ForgettingWork
from ricordo.features.memory_care.forgetting.needle import MARK
from ricordo.features.memory_care.forgetting.service import Choice
from ricordo.memory import user_memory
from ricordo.memory.unwanted import Rules
from ricordo.memory.user_memory import PutOptions
from ricordo.plugins import Plugins
from ricordo.search.index import insert_messages, insert_passages
from ricordo.settings import SQLITE
from ricordo.storage import blocks, conversations, jobs, messages, proposals, runs
from ricordo.storage.engine.store import Transaction
from ricordo.storage.schema.columns import metadata
from ricordo.storage.schema.core_tables import conversations as conversations_table
from ricordo.storage.schema.core_tables import jobs as jobs_table
from tests.conftest import BOTH
from tests.memory.steps import owned_of, put
from tests.seams import make
from tests.seams.stage import Stage
from tests.seams.stores import killed_after
from tests.support.canaries import CANARY, canary, in_tables

DATABASES = BOTH
SCOPE = Scope()
(_FORGET,) = HANDLERS
TEXT = f"My {canary('illness')} began in May"
ALL = Choice(takes_all=True)


async def ada(stage: Stage) -> str:
    """Make a user whose data of several kinds contain TEXT; return the agent's id."""
    state = await stage.state(await stage.agent())
    archive = await make.stored_archive(stage.store, state.agent, "Tea grows in Darjeeling.")

    def write(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada", makes=True)
        for value in (f"Likes tea.\n- {TEXT}.", f"Likes tea.\n{TEXT}!\nHas a cat."):
            user_memory.put(tx, owned, "human", value, owned.owner)
        own = make.conversation(state.agent, id="conv-ada", user_id=owned.user.id, message_count=2)
        conversations.insert_one(tx, own)
        insert_messages(
            tx,
            [
                make.message(state.agent, f"Hello. {TEXT}.", conversation_id="conv-ada"),
                make.message(state.agent, "I like tea.", conversation_id="conv-ada"),
            ],
        )
        theirs = make.passage(archive, f"{TEXT}.", user_id=owned.user.id)
        insert_passages(tx, archive, [theirs, make.passage(archive, "Tea.")])

    await stage.store.write(write)
    return state.agent.id


async def next_job(stage: Stage) -> Job | None:
    await stage.store.write(jobs.take_over)

    def claim(tx: Transaction) -> Job | None:
        is_next = (jobs_table.c.kind == _FORGET.kind) & (jobs_table.c.status == "waiting")
        row = tx.first(select(jobs_table.c.id).where(is_next).order_by(jobs_table.c.seq))
        return jobs.claim_one(tx, "worker", row.id) if row else None

    return await stage.store.write(claim)


async def finish_jobs(stage: Stage) -> None:
    while job := await next_job(stage):
        await _FORGET.run(stage.runtime, job, lambda _done, _total: None)
        await stage.store.write(lambda tx, job=job: jobs.finish(tx, job))


async def test_a_number_is_forgotten_in_the_metadata_of_all_things(stage: Stage) -> None:
    """Metadata is free JSON; a phone number may be a number there, under any name."""
    number = 5551234
    found = {"phone": number, "name": f"call {number}", "more": [{"id": number}]}
    await ada(stage)
    agent_id = await stage.agent(user="ada", metadata=found)
    agent = (await stage.state(agent_id)).agent
    archive = await make.stored_archive(stage.store, agent, "Tea.")

    def write(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        block = user_memory.put(tx, owned, "phones", "Numbers.", owned.owner)
        changed = replace(block, metadata={**block.metadata, **found})
        blocks.update(tx, block, changed, make.change_metadata(owned.user.id))
        passage = make.passage(archive, "A number.", user_id=owned.user.id, metadata=found)
        insert_passages(tx, archive, [passage])
        run = make.run(agent, user_id=owned.user.id, ended_at=9, status="completed", metadata=found)
        runs.open_run(tx, run)

    await stage.store.write(write)
    tables = ("agents", "blocks", "blocks_log", "passages", "runs")

    def holding(tx: Transaction) -> set[str]:
        rows = {name: tx.all(select(metadata.tables[name])) for name in tables}
        return {name for name in tables if str(number) in repr(rows[name])}

    assert await stage.store.read(holding) == {*tables}
    await service.forget(stage.runtime, SCOPE, "ada", str(number), ALL)
    await finish_jobs(stage)
    assert await stage.store.read(holding) == set()


async def test_a_forgetting_job_killed_after_any_write_is_completed_and_counted_once(
    stage: Stage,
) -> None:
    await ada(stage)
    state = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    kills = 0
    while job := await next_job(stage):
        try:
            with killed_after(stage.runtime, 1 + 3 * kills):
                await _FORGET.run(stage.runtime, job, lambda _done, _total: None)
        except asyncio.CancelledError:
            kills += 1
            assert kills < 60
        else:
            await stage.store.write(lambda tx, job=job: jobs.finish(tx, job))

    assert kills > 3
    assert await stage.store.read(in_tables) == []
    receipt = await service.find_receipt(stage.runtime, SCOPE, state["id"])
    assert receipt["status"] == "done"
    assert receipt["changed"] == {"blocks": 1, "commits": 2, "messages": 1}
    assert receipt["removed"] == {"passages": 1}
    assert CANARY not in str(receipt)
    text = await stage.store.read(
        lambda tx: user_memory.require(tx, user_memory.open_memory(tx, SCOPE, "ada"), "human").value
    )
    assert text == "Likes tea.\nHas a cat."
    said = await stage.store.read(lambda tx: messages.between(tx, "conv-ada", 0, 10_000, 10))
    assert [message.text for message in said] == [f"Hello. {MARK}", "I like tea."]


async def test_text_that_a_turn_wrote_during_the_search_is_removed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make.agent(id=await ada(stage))
    late = make.message(agent, f"You said: {TEXT}.", conversation_id="conv-ada")
    remove_all = ForgettingWork._remove_all
    late_messages = [late]

    async def remove_before_the_turn_ends(work: ForgettingWork, owned: Belongings) -> None:
        await remove_all(work, owned)
        if late_messages:
            await stage.store.write(lambda tx: insert_messages(tx, [late_messages.pop()]))

    monkeypatch.setattr(ForgettingWork, "_remove_all", remove_before_the_turn_ends)
    await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    assert late_messages == []
    assert await stage.store.read(in_tables) == []


async def test_a_repeated_request_to_forget_is_one_and_several_texts_queue(stage: Stage) -> None:
    await ada(stage)
    first, second, other = [
        await service.forget(stage.runtime, SCOPE, "ada", text, ALL)
        for text in (TEXT, TEXT, "Has a cat")
    ]
    assert first["id"] == second["id"] != other["id"]
    with pytest.raises(NotFound):
        await service.find_receipt(stage.runtime, Scope(organization_id="org-other"), first["id"])

    await finish_jobs(stage)

    assert await stage.store.read(in_tables) == []
    again = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)
    receipt = await service.find_receipt(stage.runtime, SCOPE, again["id"])
    assert (receipt["changed"], receipt["removed"]) == ({}, {})


async def test_a_forget_request_with_other_options_or_rights_is_not_a_repetition(
    stage: Stage,
) -> None:
    await ada(stage)
    text = f"My {canary('illness')} began"
    limited = replace(SCOPE, scopes=SCOPE.scopes - {"agents:write", "admin"})
    requests = [
        (scope, Choice(takes_all=True, is_never_again=is_never_again))
        for scope in (limited, SCOPE)
        for is_never_again in (False, True)
    ]
    ids = [
        (await service.forget(stage.runtime, scope, "ada", text, choice))["id"]
        for scope, choice in requests * 2
    ]
    assert ids[:4] == ids[4:]
    assert len(set(ids)) == 4
    await finish_jobs(stage)
    owned = await stage.store.read(lambda tx: user_memory.open_memory(tx, SCOPE, "ada"))
    rules = await stage.store.read(lambda tx: user_memory.require(tx, owned, NEVER_REMEMBER).value)
    assert Rules.of_text(rules).refuse("", text)


async def test_only_chosen_items_are_removed_and_uncertain_ones_never_by_default(
    stage: Stage,
) -> None:
    await ada(stage)
    near = f"In May began my {canary('illness')}, the doctor said."

    def add(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        user_memory.put(tx, owned, "notes", f"Fine.\n{near}", owned.owner)

    await stage.store.write(add)
    listed = await service.preview(stage.runtime, SCOPE, "ada", TEXT)
    perhaps = [item for item in listed.items if item.match == "perhaps"]
    assert {item.where["label"] for item in perhaps} == {"notes"}
    (message,) = [item for item in listed.items if item.kind == "message"]

    await service.forget(stage.runtime, SCOPE, "ada", TEXT, Choice(ids=[message.id]))
    await finish_jobs(stage)

    left = await service.preview(stage.runtime, SCOPE, "ada", TEXT)
    assert {item.id for item in listed.items} - {item.id for item in left.items} == {message.id}
    ids = [item.id for item in left.items]
    await service.forget(stage.runtime, SCOPE, "ada", TEXT, Choice(ids=ids))
    await finish_jobs(stage)
    assert await stage.store.read(in_tables) == []


async def test_a_forgotten_text_is_blocked_by_a_rule_that_does_not_contain_it(
    stage: Stage,
) -> None:
    await ada(stage)
    await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    def rule(tx: Transaction) -> str:
        memory = user_memory.open_memory(tx, SCOPE, "ada")
        return user_memory.require(tx, memory, NEVER_REMEMBER).value

    text = await stage.store.read(rule)
    assert CANARY not in text
    rules = Rules.of_text(text)
    siblings = [
        f"- {TEXT}",
        f"2026-05-01: “{TEXT}”",
        TEXT.upper(),
        f"The user's {canary('illness')} began in May.",
        f"Began in May: {canary('illness')}",
    ]
    assert [
        line for line in siblings if not rules.refuse("Likes tea.", f"Likes tea.\n{line}")
    ] == []
    others = ["Likes coffee.", "Lives in Rome", "Has an exam on 3 May", "My cat began to sing"]
    assert [line for line in others if rules.refuse("", line)] == []


async def test_a_text_is_forgotten_without_room_for_its_rule(stage: Stage) -> None:
    await ada(stage)

    def fill(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        options = PutOptions(limit=20)
        user_memory.put(tx, owned, NEVER_REMEMBER, "I have asthma.", owned.owner, options)

    await stage.store.write(fill)
    state = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    assert await stage.store.read(in_tables) == []
    receipt = await service.find_receipt(stage.runtime, SCOPE, state["id"])
    assert receipt["status"] == "done"
    assert any("may remember the text again" in sentence for sentence in receipt["elsewhere"])


async def test_a_text_is_forgotten_if_another_block_has_the_name_of_the_rules(
    stage: Stage,
) -> None:
    await ada(stage)

    def fill(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        user_memory.put(tx, owned, NEVER_REMEMBER.title(), "Snow.", owned.owner)

    await stage.store.write(fill)
    state = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    receipt = await service.find_receipt(stage.runtime, SCOPE, state["id"])
    assert receipt["status"] == "done"
    assert any("may remember the text again" in sentence for sentence in receipt["elsewhere"])


async def test_the_receipt_counts_backups_beside_the_database_and_names_unread_folders(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = SecretStr(f"{SQLITE}{tmp_path}/elsewhere/ricordo.db")
    settings = stage.runtime.settings.model_copy(update={"database_url": address})
    monkeypatch.setattr(stage.runtime, "settings", settings)
    for folder in (settings.data_dir, tmp_path / "elsewhere"):
        (folder / "backups" / "old").mkdir(parents=True)
        (folder / "backups" / "a.db").touch()
    unread = tmp_path / "elsewhere" / "backups" / "old"
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == unread:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    await ada(stage)
    state = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    receipt = await service.find_receipt(stage.runtime, SCOPE, state["id"])
    assert any("Backups" in sentence and ": 2." in sentence for sentence in receipt["elsewhere"])
    assert any("elsewhere/backups/old cannot be" in sentence for sentence in receipt["elsewhere"])


async def test_empty_and_oversized_texts_to_forget_are_refused(stage: Stage) -> None:
    await ada(stage)
    for text in ("", " … ", "the", "x" * 3_000, "\n".join(f"Line {n} here" for n in range(30))):
        with pytest.raises(Invalid):
            await service.preview(stage.runtime, SCOPE, "ada", text)
    with pytest.raises(Invalid, match="Choose"):
        await service.forget(stage.runtime, SCOPE, "ada", TEXT, Choice())
    with pytest.raises(NotFound):
        await service.preview(stage.runtime, SCOPE, "nobody", TEXT)


async def test_an_agents_forget_request_waits_once_and_ends_with_the_decision(stage: Stage) -> None:
    await ada(stage)
    user_id = await stage.store.read(lambda tx: user_memory.open_memory(tx, SCOPE, "ada").user.id)

    def ask(tx: Transaction, text: str = TEXT) -> Any:
        return queries.add(tx, queries.ForgetRequest("", SCOPE.organization_id, user_id, text))

    request = await stage.store.write(ask)
    assert await stage.store.write(ask) == request
    for number in range(queries.MOST_WAITING - 1):
        await stage.store.write(lambda tx, number=number: ask(tx, f"Thing number {number}"))
    with pytest.raises(Conflict, match="wait for this person"):
        await stage.store.write(lambda tx: ask(tx, "One more thing"))

    choice = Choice(takes_all=True, request_id=request.id)
    first, second = [
        await service.forget(stage.runtime, SCOPE, "ada", TEXT, choice) for _ in range(2)
    ]
    assert first["id"] == second["id"]
    await finish_jobs(stage)

    assert await stage.store.read(in_tables) == []
    waiting = await stage.store.read(lambda tx: queries.of_user(tx, SCOPE.organization_id, user_id))
    assert len(waiting) == queries.MOST_WAITING - 1


async def test_facts_are_removed_with_their_forgotten_evidence(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plugins, "forget_sources", lambda _: [SOURCE])
    agent_id = await ada(stage)

    def lay_out(tx: Transaction) -> str:
        user_id = user_memory.open_memory(tx, SCOPE, "ada").user.id
        said, tea = messages.between(tx, "conv-ada", 0, 10_000, 10)
        part = Evidence(said.id, canary("illness"))
        other = Evidence(tea.id, "I like tea.")
        for sentence, evidence in {
            TEXT: (Evidence(said.id, TEXT),),
            "Has been unwell since spring.": (part,),  # The same fact in a model's words.
            "Likes tea.": (part, other),
            "Drinks tea.": (other,),
            "Is kind.": (),
        }.items():
            fact = UserFact(
                new_id("fact"),
                SCOPE.organization_id,
                user_id,
                sentence,
                kind="who",
                source="model",
                state="current",
                said_at=1,
                holds_from=1,
                created_at=1,
                evidence=evidence,
            )
            fact_queries.insert(tx, fact)
        fact_queries.set_mark(tx, "conv-ada", user_id, tea.seq)
        return user_id

    user_id = await stage.store.write(lay_out)
    state = await service.forget(stage.runtime, SCOPE, "ada", TEXT, ALL)
    await finish_jobs(stage)

    facts = await stage.store.read(lambda tx: fact_queries.of_states(tx, user_id, "current"))
    assert {fact.sentence: [piece.quote for piece in fact.evidence] for fact in facts} == {
        "Likes tea.": ["I like tea."],
        "Drinks tea.": ["I like tea."],
        "Is kind.": [],
    }
    receipt = await service.find_receipt(stage.runtime, SCOPE, state["id"])
    assert (receipt["removed"]["user_facts"], receipt["changed"]["user_facts"]) == (2, 1)
    now = stage.store.clock.now()
    unread = await stage.store.read(
        lambda tx: fact_queries.unread_of(tx, user_id, agent_id, 0, now)
    )
    assert unread == []


async def test_forgetting_keeps_instructions_of_agents_set_up_by_others(stage: Stage) -> None:
    await ada(stage)
    rule = BlockSpec("rules", f"{TEXT}. Never give the solution.", read_only=True)
    agent_id = await stage.agent(
        system=f"You teach. {TEXT}.", blocks=(rule, BlockSpec("notes", f"{TEXT}. She is kind."))
    )

    def give(tx: Transaction) -> Scope:
        user = user_memory.open_memory(tx, SCOPE, "ada").user
        is_agents = conversations_table.c.agent_id == agent_id
        tx.run(update(conversations_table).where(is_agents).values(user_id=user.id))
        return Scope(user_id=user.id, subject_id=user.id, role="user", scopes=ROLE_SCOPES["user"])

    user_scope = await stage.store.write(give)
    labels = []
    for scope in (SCOPE, user_scope):
        listed = await service.preview(stage.runtime, scope, "ada", TEXT)
        items = [item for item in listed.items if item.kind in ("block", "version", "agent")]
        labels.append({item.where.get("label", item.kind) for item in items} - {"human"})
    assert labels == [{"notes", "rules", "agent"}, {"notes"}]
    assert '"rules"' in str(listed.remains)
    assert "others share it or set it up" in str(listed.remains)

    await service.forget(stage.runtime, user_scope, "ada", TEXT, ALL)
    await finish_jobs(stage)

    state = await stage.state(agent_id)
    assert state.agent.system == f"You teach. {TEXT}."
    values = {block.label: block.value for block in state.blocks}
    assert values["rules"] == f"{TEXT}. Never give the solution."
    assert values["notes"] == "She is kind."
    clerk = Scope(scopes=frozenset(("users:write",)))
    with pytest.raises(Forbidden):
        await service.preview(stage.runtime, clerk, "ada", TEXT)


PARAPHRASES = {
    "My diagnosis is diabetes": (
        "The doctor told me that I have a blood sugar disease.",
        "I have diabetes and take insulin.",
    ),
    "I broke up with Alex last year": (
        "Alex and I are no longer together.",
        "My relationship with Alex ended in 2025.",
    ),
    "My salary is 4,000 euros a month": ("I earn four thousand euros monthly.",),
}
OF_OTHER_THINGS = (
    "I like tea.",
    "My sister is a doctor in Graz.",
    "The exam is on 12 May.",
    "I work as a nurse in Vienna.",
    "We had pasta for dinner yesterday.",
    "I am allergic to nuts.",
)


async def test_paraphrases_are_listed_and_removed_when_chosen(
    stage: Stage,
) -> None:
    await ada(stage)

    def add(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        lines = [*OF_OTHER_THINGS, *(line for some in PARAPHRASES.values() for line in some)]
        user_memory.put(tx, owned, "notes", "\n".join(lines), owned.owner)

    await stage.store.write(add)
    for text, paraphrases in PARAPHRASES.items():
        listed = await service.preview(stage.runtime, SCOPE, "ada", text)
        found = {
            sentence
            for item in listed.items
            for sentence in item.excerpts
            if item.match == "perhaps"
        }
        assert found == set(paraphrases)
        await service.forget(stage.runtime, SCOPE, "ada", text, ALL)
        await finish_jobs(stage)
        ids = [item.id for item in listed.items if item.match == "perhaps"]
        await service.forget(stage.runtime, SCOPE, "ada", text, Choice(ids=ids))
        await finish_jobs(stage)

    def notes(tx: Transaction) -> str:
        memory = user_memory.open_memory(tx, SCOPE, "ada")
        return user_memory.require(tx, memory, "notes").value

    assert (await stage.store.read(notes)).split("\n") == list(OF_OTHER_THINGS)


async def test_without_the_embedding_model_only_exact_words_are_listed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ada(stage)
    monkeypatch.setattr(stage.runtime.settings, "embedding", "none")

    def add(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        user_memory.put(tx, owned, "notes", "Alex and I are no longer together.", owned.owner)

    await stage.store.write(add)
    listed = await service.preview(stage.runtime, SCOPE, "ada", "I broke up with him last year")
    assert listed.items == ()


@pytest.mark.parametrize("label", ["lactose-intolerance", "health/lactose_intolerance"])
async def test_names_of_blocks_that_say_it_are_listed_and_counted_in_the_receipt(
    stage: Stage, label: str
) -> None:
    await put(stage.store, label, "No milk.")
    await put(stage.store, "human", "She has a lactose intolerance.")
    listed = await service.preview(stage.runtime, SCOPE, "ada", "lactose intolerance")
    (sentence,) = listed.remains
    assert f'"{label}"' in sentence
    await service.forget(stage.runtime, SCOPE, "ada", "lactose intolerance", ALL)
    await finish_jobs(stage)
    (receipt,) = (stage.runtime.settings.data_dir / "receipts").glob("*.json")
    assert "Names of blocks that say it, and stay: 1." in receipt.read_text()
    assert "lactose" not in receipt.read_text()


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("label", ["lactose-intolerance", "health/lactose_intolerance"])
async def test_former_names_of_blocks_that_say_it_are_listed_and_counted(
    stage: Stage, label: str, is_deleted: bool
) -> None:
    await put(stage.store, label, "No milk.")

    def end(tx: Transaction) -> None:
        owned = user_memory.open_memory(tx, SCOPE, "ada")
        if is_deleted:
            user_memory.delete(tx, owned, label, owned.owner)
        else:
            user_memory.rename(tx, owned, label, "food", owned.owner)

    await stage.store.write(end)
    listed = await service.preview(stage.runtime, SCOPE, "ada", "lactose intolerance")
    assert [sentence for sentence in listed.remains if f'"{label}"' in sentence] == [
        f'The former block name "{label}" says it too, and stays in the history.'
    ]
    await service.forget(stage.runtime, SCOPE, "ada", "lactose intolerance", ALL)
    await finish_jobs(stage)
    (receipt,) = (stage.runtime.settings.data_dir / "receipts").glob("*.json")
    assert "Former names of blocks that say it, and stay in the history: 1." in receipt.read_text()
    assert "lactose" not in receipt.read_text()


async def test_the_title_of_a_block_forgets_too(stage: Stage) -> None:
    await put(stage.store, "food", "No milk.", title="Her lactose intolerance")
    listed = await service.preview(stage.runtime, SCOPE, "ada", "lactose intolerance")
    assert "block" in {item.kind for item in listed.items}
    await service.forget(stage.runtime, SCOPE, "ada", "lactose intolerance", ALL)
    await finish_jobs(stage)
    assert await stage.store.read(lambda tx: in_tables(tx, "lactose")) == []
    owned = await owned_of(stage.store)
    block = await stage.store.read(lambda tx: user_memory.require(tx, owned, "food"))
    assert (block.title, block.value) == (MARK, "No milk.")


# A block, the text that is proposed for it, and what is proposed once the gout is forgotten; None:
# nothing any more.
FORGOTTEN_PROPOSALS = [
    ("Likes tea.\nWeighs 80.", "Likes tea.\nWeighs 90, has gout.", None),
    ("Likes tea. Weighs 80.", "Likes tea. Has gout.", None),
    ("Likes tea.\nWeighs 80.", "Has gout.", None),
    ("Likes tea.", "Likes tea.\nHas gout.", None),
    ("Likes tea.", "Likes rum.\nHas gout.", "Likes rum."),
    (
        "Likes tea.\nSings.\nWeighs 80.",
        "Likes tea.\nWeighs 90, has gout.",
        None,
    ),
    ("Likes tea.\nSings.\nReads.", "Likes rum.\nSings.\nHas gout.", "Likes rum.\nSings.\nReads."),
    ("Likes tea.\nHas gout.", "Likes rum.\nHas gout.", "Likes rum."),
    ("Likes tea.\nHas gout.", "Likes tea.", None),
    ("", "Has gout.", None),
    ("", "Has gout.\nSings.", "Sings."),
]


@pytest.mark.parametrize(("value", "proposed", "left"), FORGOTTEN_PROPOSALS)
async def test_a_proposal_without_its_forgotten_text_deletes_nothing_else(
    stage: Stage, value: str, proposed: str, left: str | None
) -> None:
    await put(stage.store, "human", value)
    owned = await owned_of(stage.store)
    author = Actor("agent", "agent-x", "X")
    await stage.store.write(
        lambda tx: user_memory.propose_edit(tx, owned, "human", value, proposed, author)
    )
    await service.forget(stage.runtime, SCOPE, "ada", "has gout", ALL)
    await finish_jobs(stage)
    waiting = await stage.store.read(lambda tx: proposals.waiting(tx, owned.chain.id))
    assert [proposal.value for proposal in waiting] == ([] if left is None else [left])
    assert await stage.store.read(lambda tx: in_tables(tx, "gout")) == []
