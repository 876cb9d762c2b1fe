"""Tools for memory that belongs to somebody: what they read, and what becomes of an edit under each policy."""

from typing import Any

import pytest

from ricordo.domain.block import Policy
from ricordo.domain.scope import Scope
from ricordo.domain.version import Proposal
from ricordo.memory.step_commit import Committed, commit
from ricordo.memory.working_memory import WorkingMemory
from ricordo.storage import agents, proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Store
from ricordo.storage.proposals import ProposalFilter
from tests.seams import make
from tests.tools.builtin.desk import Desk, paper_desk

TEXT = "Name: Ada\nDrink: tea\nCity: Turin, near tea shops"


@pytest.fixture
def human() -> Desk:
    """An agent with three blocks."""
    return paper_desk(
        make.block("human", TEXT, policy="propose", title="You", description="Who she is."),
        make.block("plans", ""),
        make.block("rules", "Be kind.", read_only=True),
    )


async def owned(store: Store, policy: Policy, value: str = TEXT) -> Desk:
    state = await make.stored_agent(store, with_blocks=[make.block("human", value, policy=policy)])
    return Desk(store, state, WorkingMemory(state))


async def saved(desk: Desk, **circumstances: Any) -> Committed:
    """Store the step; the desk then stands at the next one."""
    given = make.edit_context(desk.state, **circumstances)
    done = await desk.store.write(lambda tx: commit(tx, desk.state, desk.memory, Scope(), given))
    desk.state = await desk.store.read(lambda tx: agents.load(tx, Scope(), desk.state.agent.id))
    desk.memory = WorkingMemory(desk.state)
    return done


async def waiting(desk: Desk) -> list[Proposal]:
    wanted = ProposalFilter(status="open")
    return await desk.store.read(lambda tx: proposals.page(tx, Scope(), Page(limit=9, order="asc"), wanted))


async def test_blocks_are_listed_with_what_becomes_of_edits(human: Desk) -> None:
    assert await human.read("list_memory_blocks") == [
        {
            "label": "human",
            "title": "You",
            "description": "Who she is.",
            "characters": len(TEXT),
            "limit": 100_000,
            "policy": "propose",
        },
        {"label": "plans", "description": "", "characters": 0, "limit": 100_000, "policy": "direct"},
        {"label": "rules", "description": "", "characters": 8, "limit": 100_000, "policy": "read_only"},
    ]


async def test_a_block_is_read_to_the_letter(human: Desk) -> None:
    assert await human.said("read_memory_block", label="human") == TEXT
    assert await human.said("read_memory_block", label="plans") == 'Memory block "plans" is empty.'
    told = await human.refused("read_memory_block", label="taste")
    assert told == 'There is no memory block "taste" here. Blocks you have: human, plans, rules.'


async def test_what_is_only_proposed_is_in_nothing_that_is_read(store: Store) -> None:
    desk = await owned(store, "propose")
    proposal = {"label": "human", "old_string": "Ada", "new_string": "Grace", "reasoning": "She said so."}
    await desk.said("propose_memory_edit", **proposal)
    assert await desk.said("read_memory_block", label="human") == TEXT
    await saved(desk)
    assert await desk.said("read_memory_block", label="human") == TEXT
    assert await desk.read("list_memory_blocks") == [
        {"label": "human", "description": "", "characters": len(TEXT), "limit": 100_000, "policy": "propose"}
    ]
    assert [one.value for one in await waiting(desk)] == [TEXT.replace("Ada", "Grace")]


@pytest.mark.parametrize(
    ("policy", "circumstances", "quote", "is_applied"),
    [
        ("direct", {}, None, True),
        ("direct", {"is_untrusted": True}, None, True),
        ("guarded", {}, None, True),
        ("guarded", {"is_untrusted": True}, None, False),
        ("explicit", {"said": ("I am called Grace now.",)}, "I am called Grace now", True),
        ("explicit", {"said": ("I am called Grace now.",)}, "call her Grace", False),
        ("explicit", {"said": ("I am called Grace now.",)}, None, False),
        ("propose", {"said": ("I am called Grace now.",)}, "I am called Grace now", False),
    ],
)
async def test_an_edit_is_applied_or_proposed_by_the_blocks_policy(
    store: Store, policy: Policy, circumstances: dict[str, Any], quote: str | None, is_applied: bool
) -> None:
    desk = await owned(store, policy)
    edit = {"label": "human", "old_string": "Ada", "new_string": "Grace", "reasoning": "She said so."}
    await desk.said("edit_memory_block", **edit, **({"quote": quote} if quote else {}))
    done = await saved(desk, **circumstances)
    (block,) = desk.state.blocks
    told = done.results["call-1"]
    if is_applied:
        assert block.value == TEXT.replace("Ada", "Grace")
        assert told == f'Applied to memory block "human" as version {(block.head or b"").hex()[:12]}.'
        assert await waiting(desk) == []
    else:
        assert block.value == TEXT
        (proposal,) = await waiting(desk)
        assert (proposal.value, proposal.reasoning) == (TEXT.replace("Ada", "Grace"), "She said so.")
        assert proposal.id in told
        assert "waits for the owner" in told
        assert "You will not be told" in told


async def test_a_proposal_waits_even_where_the_agent_might_edit(store: Store) -> None:
    desk = await owned(store, "direct")
    given = {"label": "human", "old_string": "tea\n", "new_string": "coffee\n", "reasoning": "A guess."}
    await desk.said("propose_memory_edit", **given, confidence=0.4)
    done = await saved(desk)
    assert desk.state.blocks[0].value == TEXT
    (proposal,) = await waiting(desk)
    assert (proposal.confidence, proposal.base) == (0.4, desk.state.blocks[0].head)
    assert "You will not be told" in done.results["call-1"]


async def test_a_text_is_replaced_once_everywhere_or_put_into_an_empty_block(human: Desk) -> None:
    give = {"reasoning": "She said so."}
    await human.said("edit_memory_block", label="human", old_string="Drink: tea", new_string="Drink: water", **give)
    await human.said("edit_memory_block", label="human", old_string="a", new_string="A", replace_all=True, **give)
    assert human.memory.block("human").value == "NAme: AdA\nDrink: wAter\nCity: Turin, neAr teA shops"
    await human.said("edit_memory_block", label="plans", old_string="", new_string="Rest.", **give)
    assert human.memory.block("plans").value == "Rest."
    await human.said("edit_memory_block", label="plans", old_string="Rest.", new_string="", **give)
    assert human.memory.block("plans").value == ""


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"old_string": "Bob"}, "old_string does not occur word for word"),
    ({"old_string": "tea"}, 'old_string occurs 2 times in memory block "human", in lines [2, 3]'),
    ({"old_string": ""}, "is not empty"),
    ({"old_string": "Ada", "new_string": "Ada"}, "are the same"),
    ({"old_string": "1→ Name"}, "line number prefix"),
    ({"old_string": "Ada", "reasoning": " "}, "Say why"),
    ({"old_string": "Ada", "reasoning": "x" * 4001}, "4000 is the most"),
    ({"old_string": "Ada", "reasoning": "She\0"}, "NUL"),
    ({"old_string": "Ada", "new_string": "A\0a"}, "NUL"),
    ({"label": "taste"}, 'There is no memory block "taste" here'),
    ({"label": "rules", "old_string": "kind", "new_string": "cruel"}, "read-only"),
]


async def test_what_cannot_be_replaced_is_refused_and_changes_nothing(human: Desk) -> None:
    given = {"label": "human", "old_string": "Ada", "new_string": "Grace", "reasoning": "She said so."}
    for name in ("edit_memory_block", "propose_memory_edit"):
        for arguments, told in REFUSALS:
            assert told in await human.refused(name, **given | arguments), arguments
    for confidence in (-0.1, 1.1):
        assert "from 0 to 1" in await human.refused("propose_memory_edit", **given, confidence=confidence)


async def test_a_secret_in_a_reason_is_not_kept(store: Store) -> None:
    desk = await owned(store, "propose")
    why = "She said: my password is Tr0ub4dor&3, keep it."
    await desk.said("edit_memory_block", label="human", old_string="Ada", new_string="Grace", reasoning=why)
    await saved(desk)
    (proposal,) = await waiting(desk)
    assert proposal.reasoning == "She said: my password is [secret removed: password], keep it."
