"""The tools that edit memory blocks: their effects, and the exact texts of their refusals."""

import tracemalloc
from typing import Any

import pytest

from ricordo.domain.block import Policy
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.memory.commit import CommitOutcome, commit
from ricordo.memory.edits import WorkingMemory
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.storage import agents, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Store
from ricordo.storage.proposals import ProposalFilter
from tests.seams import make
from tests.tools.builtin.desk import PREFIX, WARNING, Desk, desk, paper_desk

TEXT = "Name: Ada\nDrink:\ttea ☕\nCity: Turin"


@pytest.fixture
def human() -> Desk:
    return paper_desk(make.block("human", TEXT), make.block("plans", ""))


def at(line: int) -> dict[str, Any]:
    return {"insert_line": line}


def replacing(old: str, new: str) -> dict[str, Any]:
    return {"old_string": old, "new_string": new}


# Tools with their arguments for the block human, and its text afterwards.
EDITS: list[tuple[str, dict[str, Any], str]] = [
    *(
        ("memory_insert", {"new_string": "Pet: cat", **line}, f"{TEXT}\nPet: cat")
        for line in ({}, at(-1), at(3))
    ),
    ("memory_insert", {"new_string": "Pet: cat", **at(0)}, f"Pet: cat\n{TEXT}"),
    (
        "memory_insert",
        {"new_string": "a\n\tb\n", **at(1)},
        "Name: Ada\na\n\tb\n\nDrink:\ttea ☕\nCity: Turin",
    ),
    (
        "memory_replace",
        replacing(":\ttea ☕\nCity", ":\t水 🍵\nTown"),
        "Name: Ada\nDrink:\t水 🍵\nTown: Turin",
    ),
    ("memory_replace", replacing("\nCity: Turin", ""), "Name: Ada\nDrink:\ttea ☕"),
    ("memory_replace", replacing("Ada", r"\1 \g<0>"), TEXT.replace("Ada", r"\1 \g<0>")),
    ("memory_rethink", {"new_memory": "\tShe is\nAda."}, "\tShe is\nAda."),
    ("memory_rethink", {"new_memory": ""}, ""),
    ("core_memory_append", {"content": "1→ Pet: cat"}, f"{TEXT}\n1→ Pet: cat"),
    ("core_memory_replace", {"old_content": "a", "new_content": "A"}, TEXT.replace("a", "A")),
    ("core_memory_replace", {"old_content": "i", "new_content": ""}, TEXT.replace("i", "")),
    # The empty block.
    ("memory_insert", {"label": "plans", "new_string": "Rest\tnow"}, "Rest\tnow"),
    ("memory_insert", {"label": "plans", "new_string": "Rest", **at(0)}, "Rest"),
    (
        "memory_insert",
        {"label": "plans", "new_string": "Turin 2→ Rome, x→ y, →z"},
        "Turin 2→ Rome, x→ y, →z",
    ),
    ("core_memory_append", {"label": "plans", "content": "Rest"}, "Rest"),
]


async def test_an_edit_gives_the_blocks_new_value() -> None:
    for name, arguments, value in EDITS:
        one = paper_desk(make.block("human", TEXT), make.block("plans", ""))
        given = {"label": "human", **arguments}
        assert await one.said(name, **given) == value, (name, arguments)
        assert one.memory.block(given["label"]).value == value
        assert len(one.memory.edits) == 1


async def test_tabs_white_space_and_every_script_are_stored_unchanged(store: SqliteStore) -> None:
    one = await desk(store, ("human", TEXT), ("plans", ""), ("persona", ""))
    await one.said("memory_replace", label="human", old_string="\ttea", new_string="\t 水 \t🍵  ")
    await one.said("memory_insert", label="plans", new_string="\tمرحبا\n ")
    await one.said("core_memory_append", label="persona", content="\té\u0301\r")
    await one.save()
    assert {block.label: block.value for block in one.state.blocks} == {
        "human": "Name: Ada\nDrink:\t 水 \t🍵   ☕\nCity: Turin",
        "plans": "\tمرحبا\n ",
        "persona": "\té\u0301\n",
    }


async def test_legacy_parameter_names_are_accepted() -> None:
    for name, given, value in (
        ("memory_replace", {"old_str": "tea", "new_str": "water"}, TEXT.replace("tea", "water")),
        ("memory_replace", {"old_str": "tea", "new_string": "water"}, TEXT.replace("tea", "water")),
        ("memory_insert", {"new_str": "Pet: cat"}, f"{TEXT}\nPet: cat"),
    ):
        assert (
            await paper_desk(make.block("human", TEXT)).said(name, label="human", **given) == value
        ), given


BANNER = (
    "{} contains a line number warning, which is not allowed. Do not include line number "
    "information when calling memory tools (line numbers are for display purposes only)."
)
NOT_THERE = (
    "No replacement was performed, old_string `{}` did not appear verbatim in memory block with "
    "label `human`."
)
TWICE = (
    "No replacement was performed. Multiple occurrences of old_string `{}` in lines {}. Please "
    "ensure it is unique. It occurs {} times."
)
LINE = (
    "Invalid `insert_line` parameter: {}. It should be within the range of lines of the memory "
    "block: [0, {}], or -1 to append to the end of the memory block."
)


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("memory_replace", replacing("coffee", "water"), NOT_THERE.format("coffee")),
    ("memory_replace", replacing("", "water"), NOT_THERE.format("")),
    ("memory_replace", replacing(": ", "="), TWICE.format(": ", "[1, 3]", 2)),
    ("memory_replace", replacing("1→ Name: Ada", "Name: Eve"), PREFIX.format("old_string")),
    ("memory_replace", replacing("Ada", "Eve\n \t12→Pet: cat"), PREFIX.format("new_string")),
    ("memory_replace", replacing(f"{WARNING}\n1→ Name", "Eve"), BANNER.format("old_string")),
    ("memory_replace", replacing("Ada", WARNING), BANNER.format("new_string")),
    ("memory_insert", {"new_string": "4→ Pet: cat"}, PREFIX.format("new_string")),
    ("memory_insert", {"new_string": f"Pet\n{WARNING}"}, BANNER.format("new_string")),
    ("memory_rethink", {"new_memory": "She\n2→ is Ada"}, PREFIX.format("new_memory")),
    ("memory_rethink", {"new_memory": WARNING}, BANNER.format("new_memory")),
    ("memory_insert", {"new_string": "x", "insert_line": 4}, LINE.format(4, 3)),
    ("memory_insert", {"new_string": "x", "insert_line": -2}, LINE.format(-2, 3)),
    ("memory_insert", {"label": "plans", "new_string": "x", "insert_line": 1}, LINE.format(1, 0)),
    *(
        (
            "core_memory_replace",
            {"label": label, "old_content": old, "new_content": "water"},
            f"Old content '{old}' not found in memory block '{label}'",
        )
        for label, old in (("human", "coffee"), ("plans", ""))
    ),
]


async def test_an_invalid_edit_is_refused_in_these_words(human: Desk) -> None:
    for name, arguments, told in REFUSALS:
        assert await human.refused(name, **{"label": "human", **arguments}) == told, (
            name,
            arguments,
        )
    one = paper_desk(make.block("human", "a\nb\n-\na\nb\nb a\nb"))
    assert await one.refused(
        "memory_replace", label="human", **replacing("a\nb", "c")
    ) == TWICE.format("a\nb", "[1, 4, 6]", 3)


ANY_EDIT: list[tuple[str, dict[str, Any]]] = [
    ("memory_insert", {"new_string": "xxxx"}),
    ("memory_replace", {"old_string": "Ada", "new_string": "Ada xxxx"}),
    ("memory_rethink", {"new_memory": "xxxx Ada"}),
    ("core_memory_append", {"content": "xxxx"}),
    ("core_memory_replace", {"old_content": "Ada", "new_content": "Ada xxxx"}),
]


async def test_no_tool_writes_beyond_the_limit_or_in_a_read_only_block(human: Desk) -> None:
    limited = paper_desk(make.block("human", "Ada", limit=7))
    bound = [
        paper_desk(make.block("human", "Ada", **one))
        for one in ({"read_only": True}, {"policy": "read_only"})
    ]
    for name, arguments in ANY_EDIT:
        told = (
            'Block "human" would hold 8 characters, but its limit is 7. Shorten the text or raise '
            "the limit."
        )
        assert await limited.refused(name, label="human", **arguments) == told
        for one in bound:
            told = "Error This block is read-only and cannot be edited."
            assert await one.refused(name, label="human", **arguments) == told
        told = "Block field persona does not exist (available sections = human, plans)"
        assert await human.refused(name, label="persona", **arguments) == told
        with_nul = {key: value.replace("x", "\0") for key, value in arguments.items()}
        told = "A memory block cannot hold NUL characters. Leave them out."
        assert await human.refused(name, label="human", **with_nul) == told


async def test_a_thousand_matches_are_refused_before_the_long_result_is_built() -> None:
    desk = paper_desk(make.block("human", "a\n" * 1000))
    tracemalloc.start()
    for name, arguments in (
        ("core_memory_replace", {"old_content": "a", "new_content": "b" * 100_000}),
        (
            "edit_memory_block",
            {
                "old_string": "a",
                "new_string": "b" * 100_000,
                "replace_all": True,
                "reasoning": "So.",
            },
        ),
    ):
        assert "would hold 100001000 characters" in await desk.refused(
            name, label="human", **arguments
        )
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000
    told = await desk.refused("memory_replace", label="human", old_string="a", new_string="b")
    assert f"in lines {list(range(1, 21))}. " in told


async def test_several_pieces_that_only_look_alike_have_to_be_copied_for_replace_all() -> None:
    desk = paper_desk(make.block("human", "It’s tea.\nIt‘s rum."))
    error = await desk.refused(
        "edit_memory_block",
        label="human",
        old_string="It's",
        new_string="It is",
        replace_all=True,
        reasoning="So.",
    )
    assert "occurs 2 times" in error
    assert "set replace_all" not in error
    assert "word for word" in error


async def test_finishing_edits_changes_nothing(human: Desk) -> None:
    assert await human.said("memory_finish_edits") == "Memory edits finished."
    assert human.memory.edits == []


OWNED = "Name: Ada\nDrink: tea\nCity: Turin, near tea shops"


@pytest.fixture
def mixed() -> Desk:
    return paper_desk(
        make.block("human", OWNED, policy="propose", title="You", description="Who she is."),
        make.block("plans", ""),
        make.block("rules", "Be kind.", read_only=True),
    )


async def owned(store: Store, policy: Policy, value: str = OWNED) -> Desk:
    state = await make.stored_agent(store, with_blocks=[make.block("human", value, policy=policy)])
    return Desk(store, state, WorkingMemory(state))


async def saved(desk: Desk, **circumstances: Any) -> CommitOutcome:
    given = make.edit_context(desk.state, **circumstances)
    done = await desk.store.write(lambda tx: commit(tx, desk.state, desk.memory, Scope(), given))
    desk.state = await desk.store.read(lambda tx: agents.load(tx, Scope(), desk.state.agent.id))
    desk.memory = WorkingMemory(desk.state)
    return done


async def waiting(desk: Desk) -> list[Proposal]:
    wanted = ProposalFilter(status="open")
    return await desk.store.read(
        lambda tx: proposals.page(tx, Scope(), Page(limit=9, order="asc"), wanted)
    )


async def test_blocks_are_listed_with_their_policies(mixed: Desk) -> None:
    assert await mixed.read("list_memory_blocks") == [
        {
            "label": "human",
            "title": "You",
            "description": "Who she is.",
            "characters": len(OWNED),
            "limit": 100_000,
            "policy": "propose",
        },
        {
            "label": "plans",
            "description": "",
            "characters": 0,
            "limit": 100_000,
            "policy": "direct",
        },
        {
            "label": "rules",
            "description": "",
            "characters": 8,
            "limit": 100_000,
            "policy": "read_only",
        },
    ]


async def test_a_block_is_read_exactly(mixed: Desk) -> None:
    assert await mixed.said("read_memory_block", label="human") == OWNED
    assert await mixed.said("read_memory_block", label="plans") == 'Memory block "plans" is empty.'
    told = await mixed.refused("read_memory_block", label="taste")
    assert told == 'There is no memory block "taste" here. Blocks you have: human, plans, rules.'


async def test_a_proposed_text_is_not_read(store: Store) -> None:
    desk = await owned(store, "propose")
    proposal = {
        "label": "human",
        "old_string": "Ada",
        "new_string": "Grace",
        "reasoning": "She said so.",
    }
    await desk.said("propose_memory_edit", **proposal)
    assert await desk.said("read_memory_block", label="human") == OWNED
    await saved(desk)
    assert await desk.said("read_memory_block", label="human") == OWNED
    assert await desk.read("list_memory_blocks") == [
        {
            "label": "human",
            "description": "",
            "characters": len(OWNED),
            "limit": 100_000,
            "policy": "propose",
        }
    ]
    assert [one.value for one in await waiting(desk)] == [OWNED.replace("Ada", "Grace")]


@pytest.mark.parametrize(
    ("policy", "circumstances", "quote", "is_applied"),
    [
        ("direct", {}, None, True),
        ("direct", {"is_untrusted": True}, None, True),
        ("guarded", {}, None, True),
        ("guarded", {"is_untrusted": True}, None, False),
        (
            "explicit",
            {"user_texts": lambda: ("I am called Grace now.",)},
            "I am called Grace now",
            True,
        ),
        ("explicit", {"user_texts": lambda: ("I am called Grace now.",)}, "call her Grace", False),
        ("explicit", {"user_texts": lambda: ("I am called Grace now.",)}, None, False),
        (
            "propose",
            {"user_texts": lambda: ("I am called Grace now.",)},
            "I am called Grace now",
            False,
        ),
    ],
)
async def test_an_edit_is_applied_or_proposed_by_the_blocks_policy(
    store: Store, policy: Policy, circumstances: dict[str, Any], quote: str | None, is_applied: bool
) -> None:
    desk = await owned(store, policy)
    edit = {
        "label": "human",
        "old_string": "Ada",
        "new_string": "Grace",
        "reasoning": "She said so.",
    }
    await desk.said("edit_memory_block", **edit, **({"quote": quote} if quote else {}))
    done = await saved(desk, **circumstances)
    (block,) = desk.state.blocks
    told = done.results["call-1"]
    if is_applied:
        assert block.value == OWNED.replace("Ada", "Grace")
        assert (
            told == f'Applied to memory block "human" as version {(block.head or b"").hex()[:12]}.'
        )
        assert await waiting(desk) == []
    else:
        assert block.value == OWNED
        (proposal,) = await waiting(desk)
        assert (proposal.value, proposal.reasoning) == (
            OWNED.replace("Ada", "Grace"),
            "She said so.",
        )
        assert proposal.id in told
        assert "waits for the owner" in told
        assert told.endswith("1 change waits for the owner: human (1).")


async def test_a_proposal_waits_even_if_the_policy_is_direct(store: Store) -> None:
    desk = await owned(store, "direct")
    given = {
        "label": "human",
        "old_string": "tea\n",
        "new_string": "coffee\n",
        "reasoning": "A guess.",
    }
    await desk.said("propose_memory_edit", **given, confidence=0.4)
    done = await saved(desk)
    assert desk.state.blocks[0].value == OWNED
    (proposal,) = await waiting(desk)
    assert (proposal.confidence, proposal.base) == (0.4, desk.state.blocks[0].head)
    assert "1 change waits for the owner: human (1)." in done.results["call-1"]


async def test_an_agent_is_told_how_many_of_its_changes_wait_but_not_their_texts(
    store: Store,
) -> None:
    desk = await owned(store, "propose")
    others = ProposalDraft(
        desk.state.blocks[0].chain_id, "human", f"{OWNED}\nCANARY", desk.state.blocks[0]
    )
    await store.write(
        lambda tx: propose(tx, others, ChangeMetadata(Actor("agent", "agent-other"), "Heard"))
    )
    told = []
    for old, new in (("Ada", "Grace"), ("Drink: tea", "Drink: rum"), ("Drink: tea", "Drink: rum")):
        edit = {"label": "human", "old_string": old, "new_string": new, "reasoning": "She said so."}
        await desk.said("edit_memory_block", **edit)
        told.append((await saved(desk)).results["call-1"])
    assert told[0].endswith("1 change waits for the owner: human (1).")
    assert told[1].endswith("2 changes wait for the owner: human (2).")
    _, _, second = await waiting(desk)
    assert told[2].startswith(
        f'This change of memory block "human" waits for the owner already, as {second.id}:'
    )
    assert not any(text in one for text in ("Grace", "rum", "CANARY") for one in told)


async def test_an_edit_replaces_one_or_all_matches_or_fills_an_empty_block(mixed: Desk) -> None:
    give = {"reasoning": "She said so."}
    await mixed.said(
        "edit_memory_block",
        label="human",
        old_string="Drink: tea",
        new_string="Drink: water",
        **give,
    )
    await mixed.said(
        "edit_memory_block", label="human", old_string="a", new_string="A", replace_all=True, **give
    )
    assert (
        mixed.memory.block("human").value == "NAme: AdA\nDrink: wAter\nCity: Turin, neAr teA shops"
    )
    await mixed.said("edit_memory_block", label="plans", old_string="", new_string="Rest.", **give)
    assert mixed.memory.block("plans").value == "Rest."
    await mixed.said("edit_memory_block", label="plans", old_string="Rest.", new_string="", **give)
    assert mixed.memory.block("plans").value == ""


REASONED_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"old_string": "Bob"}, "old_string does not occur word for word"),
    ({"old_string": "tea"}, 'old_string occurs 2 times in memory block "human", in lines [2, 3]'),
    ({"old_string": ""}, "is not empty"),
    ({"old_string": "Ada", "new_string": "Ada"}, "are the same"),
    ({"old_string": "1→ Name"}, "line number prefix"),
    ({"old_string": "Ada", "reasoning": " "}, "Say why"),
    ({"old_string": "Ada", "reasoning": "x" * 4001}, "4000 are allowed"),
    ({"old_string": "Ada", "reasoning": "She\0"}, "NUL"),
    ({"old_string": "Ada", "new_string": "A\0a"}, "NUL"),
    ({"label": "taste"}, 'There is no memory block "taste" here'),
    ({"label": "rules", "old_string": "kind", "new_string": "cruel"}, "read-only"),
]


async def test_an_invalid_replacement_is_refused_and_changes_nothing(mixed: Desk) -> None:
    given = {
        "label": "human",
        "old_string": "Ada",
        "new_string": "Grace",
        "reasoning": "She said so.",
    }
    for name in ("edit_memory_block", "propose_memory_edit"):
        for arguments, told in REASONED_REFUSALS:
            assert told in await mixed.refused(name, **given | arguments), arguments
    for confidence in (-0.1, 1.1):
        assert "from 0 to 1" in await mixed.refused(
            "propose_memory_edit", **given, confidence=confidence
        )


async def test_a_secret_in_a_reasoning_is_removed(store: Store) -> None:
    desk = await owned(store, "propose")
    why = "She said: my password is Tr0ub4dor&3, keep it."
    await desk.said(
        "edit_memory_block", label="human", old_string="Ada", new_string="Grace", reasoning=why
    )
    await saved(desk)
    (proposal,) = await waiting(desk)
    assert proposal.reasoning == "She said: my password is [secret removed: password], keep it."
