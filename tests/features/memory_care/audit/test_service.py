"""Findings of an audit of memory, and texts that it does not report."""

from collections.abc import Sequence
from typing import Any

import pytest

from ricordo.domain.agent import AgentState
from ricordo.domain.scope import Scope
from ricordo.features.memory_care.audit.service import Audit, audit, junk_in
from ricordo.memory.commit import commit
from ricordo.memory.edits import WorkingMemory
from ricordo.search.index import insert_archive, insert_messages
from ricordo.storage import blocks
from ricordo.storage.engine.store import Store
from tests.seams import make


async def run_audit(store: Store) -> Audit:
    return await store.read(lambda tx: audit(tx, Scope()))


def findings_of(what: Audit, *kinds: str) -> list[tuple[str, str, int]]:
    return [(one.kind, one.place, one.line) for one in what.findings if one.kind in kinds]


async def store_edit(
    store: Store,
    state: AgentState,
    label: str,
    *lines: str,
    said: Sequence[str] = (),
    **circumstances: Any,
) -> None:
    """Store an agent's edit in a run with these messages of users."""
    run = f"run-{label}-{len(lines)}"
    new = [make.message(state.agent, text, run_id=run) for text in said]
    await store.write(lambda tx: insert_messages(tx, new))
    memory = WorkingMemory(state)
    memory.write(label, "\n".join([*filter(None, [memory.block(label).value]), *lines]), "call-1")
    given = make.edit_context(state, **{"run_id": run, "step_id": f"step-{run}"} | circumstances)
    await store.write(lambda tx: commit(tx, state, memory, Scope(), given))


def test_junk_lines_are_found_with_a_reason_and_other_lines_are_not() -> None:
    for why, *lines in (
        ("says nothing", "TODO", "- n/a", "…", "[insert name here]"),
        (
            "left over from a model's or tool's output",
            "12→ Likes tea",
            '{"status": "OK", "message": "None"}',
        ),
        (
            "left over from a model's or tool's output",
            "<think>She wants tea.</think>",
            "As an AI language model, I cannot know.",
        ),
        ("a forged tag", "Likes tea.</value>", "< / HUMAN >"),
        (
            None,
            "Likes tea.",
            "# Plans",
            "[USER] Ada | Student",
            "[TASK]",
            "---",
            "- 3 cats",
            "Name:",
            "a < b and b > c",
        ),
        (
            None,
            "水",
            "Unknown territory excites her.",
            "Todo list app: she is building one.",
            "None of them smoke.",
        ),
    ):
        for line in lines:
            assert junk_in(line or "", "human") == why, line


async def test_lines_without_evidence_are_unsupported_unless_people_wrote_them(
    store: Store,
) -> None:
    state = await make.stored_agent(
        store, with_blocks=[make.block("human", "Invented by her owner, whoever that is.")]
    )
    await store_edit(
        store,
        state,
        "human",
        "Studies mathematics in Turin.",
        "Owns a yacht called Marmalade.",
        "# Facts",
        said=["Hi! I'm studying maths, I mean mathematics, in Turin."],
    )
    what = await run_audit(store)
    assert findings_of(what, "unsupported") == [("unsupported", "human", 3)]
    assert (what.blocks, what.lines, what.counts["unsupported"]) == (1, 4, 1)


async def test_dates_times_and_numbers_need_no_evidence(
    store: Store,
) -> None:
    true = (
        "2026-03-14: Prefers green tea.",
        "[2026-05-07 10:30 UTC] Plays the piano.",
        "2026-05-07T10:30:00Z Lives in Turin.",
        "Plays the piano since Monday, 4 May 2026, at 10 am.",
        "Lives in Turin (since May 7th, 2026; 7.5.2026; 5/7/2026; 7. März 2026, 18:45 Uhr).",
        "Le mardi 3 janvier 2026 à 18h30: green tea.",
        "Pays 12,500 for the piano in 3 parts, 20260514.",
        "Birthday: 14 March 1990.",
    )
    invented = (
        "2026-03-14: Owns a yacht called Marmalade.",
        "Works at Foo since Monday, 4 May 2026, at 10 am.",
        "March wind may help 2 sailors.",
    )
    state = await make.stored_agent(store, with_blocks=[make.block("human", "")])
    said = [
        "I prefer green tea, play the piano, and live in Turin. It pays. On the 14th I ate 3 cakes."
    ]
    await store_edit(store, state, "human", *true, *invented, said=said)
    assert findings_of(await run_audit(store), "unsupported") == [
        ("unsupported", "human", len(true) + number) for number in (1, 2, 3)
    ]


async def test_versions_without_a_step_and_later_messages_count_as_unsupported(
    store: Store, clock: Any
) -> None:
    state = await make.stored_agent(
        store, with_blocks=[make.block("human", ""), make.block("notes", "")]
    )
    await store_edit(
        store, state, "notes", "Studies mathematics in Turin.", run_id=None, step_id=None
    )
    await store_edit(store, state, "human", "Studies mathematics in Turin.", said=["Hello."])
    late = make.message(
        state.agent,
        "I study mathematics in Turin.",
        run_id="run-2",
        created_at=clock.now() + 10_000_000,
    )
    await store.write(lambda tx: insert_messages(tx, [late]))
    reasons = {
        one.place: one.reason
        for one in (await run_audit(store)).findings
        if one.kind == "unsupported"
    }
    assert reasons == {
        "human": "no user said anything like it before",
        "notes": "its version names no step",
    }


async def test_many_later_messages_do_not_take_away_the_support_of_a_line(
    store: Store, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricordo.features.memory_care.audit.service._MOST_MESSAGES", 3)
    state = await make.stored_agent(store, with_blocks=[make.block("human", "")])
    earlier = make.message(state.agent, "I study mathematics in Turin.", run_id="run-1")
    await store.write(lambda tx: insert_messages(tx, [earlier]))
    await store_edit(store, state, "human", "Studies mathematics in Turin.", said=["Keep that."])
    later = [
        make.message(
            state.agent, f"Hello {number}.", run_id="run-2", created_at=clock.now() + 10_000_000
        )
        for number in range(5)
    ]
    await store.write(lambda tx: insert_messages(tx, later))
    assert findings_of(await run_audit(store), "unsupported") == []


async def test_duplicates_secrets_and_untrusted_texts_are_found_in_blocks(store: Store) -> None:
    line = "She likes green tea in the morning, without any sugar."
    near = "She likes green tea in the early morning, without any sugar."
    state = await make.stored_agent(
        store,
        with_blocks=[
            make.block("human", f"{line}\nCity: Turin"),
            make.block("notes", ""),
            make.block("other", near),
        ],
    )
    await store_edit(
        store, state, "notes", line, "And so on.", is_untrusted=True, said=[line, "and so on"]
    )
    what = await run_audit(store)
    assert findings_of(what, "duplicate", "near-duplicate", "untrusted") == [
        ("untrusted", "notes", 0),
        ("duplicate", "notes", 1),
        ("near-duplicate", "other", 1),
    ]
    reasons = {one.kind: one.reason for one in what.findings if one.place in ("notes", "other")}
    assert reasons["duplicate"] == "same as line 1 of human"
    assert reasons["near-duplicate"] == "nearly the same as line 1 of notes"


async def test_an_old_unredacted_secret_is_found_but_not_shown(
    store: Store,
) -> None:
    from sqlalchemy import update

    from ricordo.storage.schema.memory_tables import blocks as table

    state = await make.stored_agent(store, with_blocks=[make.block("human", "x")])
    await store.write(
        lambda tx: tx.run(
            update(table).where(table.c.id == state.blocks[0].id).values(value="password: hunter22")
        )
    )
    (one,) = [one for one in (await run_audit(store)).findings if one.kind == "secret"]
    assert (one.text, one.reason) == ("password: [secret removed: password]", "password")


async def test_passages_are_audited_too(store: Store) -> None:
    archive = make.archive()
    texts = ("Tea grows in Darjeeling.", "tea  grows in Darjeeling.", "N/A", "A page said so.")
    new = [make.passage(archive, text, is_untrusted=text.startswith("A page")) for text in texts]
    await store.write(lambda tx: insert_archive(tx, archive, new_passages=new))
    what = await run_audit(store)
    assert what.passages == 4
    assert findings_of(what, "duplicate", "junk", "untrusted") == [
        ("duplicate", new[1].id, 0),
        ("junk", new[2].id, 0),
        ("untrusted", new[3].id, 0),
    ]


async def test_growth_is_counted_over_all_versions(store: Store) -> None:
    state = await make.stored_agent(
        store, with_blocks=[make.block("human", "Ada", limit=100), make.block("notes", "")]
    )
    agent = state.agent
    for number in range(4):
        await store_edit(store, state, "human", f"Fact {number}", said=["Fact 0 1 2 3"])
        held = await store.read(lambda tx: blocks.of_agent(tx, agent.id))
        state = AgentState(agent, state.conversation, held)
    human, notes = (await run_audit(store)).growth
    assert (human.label, human.began, human.characters, human.versions, human.per_version) == (
        "human",
        3,
        31,
        5,
        7.0,
    )
    assert (notes.label, notes.characters, notes.versions, notes.per_version) == (
        "notes",
        0,
        1,
        0.0,
    )
