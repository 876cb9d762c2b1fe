"""Rules of "Never remember": the lines that are like a rule, and the edits that a rule refuses."""

import pytest

from ricordo.domain.block import NEVER_REMEMBER
from ricordo.domain.scope import Actor
from ricordo.domain.version import ChangeMetadata
from ricordo.memory.edits import PassageDraft, WorkingMemory
from ricordo.memory.proposals import ProposalDraft, propose
from ricordo.memory.unwanted import REFUSED, Rules, Unwanted, rule_of
from ricordo.storage import agents, blocks, conversations
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import SCOPE, owned_of, put, save
from tests.seams import make

RULE = rule_of('- 2026-11-27: "I have dyslexia and need short paragraphs."')
ALIKE = (
    "I have dyslexia and need short paragraphs.",
    "Has dyslexia",
    "- has DYSLEXIA.",
    "2026-11-28: needs short paragraphs because of dyslexia",
    "* Dyslexia",
    "1. Ada has dyslexia, so she needs short paragraphs",
    'She said: "short paragraphs, I have dyslexia, I need that"',
    "dyslexia; short paragraphs needed",
    "> needs short paragraphs (dyslexia)",
    "# Dyslexia",
)
OTHER = (
    "Likes tea.",
    "Writes long paragraphs.",
    "Needs glasses",
    "My deadline is 4 December.",
    "2026-11-27: plays the cello",
    "",
    "- ",
    "The teacher needs a short answer by Monday",
    "Class 10b",
    "Has a dog",
)


def test_only_lines_like_a_rule_are_refused() -> None:
    rules = Rules.of_text(f"\n{RULE}\n")
    assert [line for line in ALIKE if not rules.refuse("Likes tea.", f"Likes tea.\n{line}")] == []
    assert [line for line in OTHER if rules.refuse("Likes tea.", f"Likes tea.\n{line}")] == []


def test_a_rule_refuses_no_removal_and_no_text_that_was_there_before() -> None:
    rules = Rules.of_text(RULE)
    text = "Ada has dyslexia.\nLikes tea."
    assert not rules.refuse(text, "Likes tea.")
    assert not rules.refuse(text, "Ada has dyslexia, she says.\nLikes tea.")
    assert not Rules.of_text("\n \n").refuse("", "Ada has dyslexia.")


@pytest.fixture
async def told(store: SqliteStore) -> SqliteStore:
    await put(store, "human", "Likes tea.", policy="direct")
    await put(store, NEVER_REMEMBER, RULE, policy="read_only")
    return store


async def test_only_the_calls_of_a_step_that_break_a_rule_fail(
    told: SqliteStore,
) -> None:
    owned = await owned_of(told)
    state = await make.stored_agent(told, with_blocks=(make.block("persona", "Kind."),))
    talk = make.conversation(state.agent, id="conv-ada", user_id=owned.user.id)
    await told.write(lambda tx: conversations.insert_one(tx, talk))
    state = await told.read(lambda tx: agents.load(tx, SCOPE, state.agent.id, talk.id))
    assert [block.label for block in state.blocks] == ["persona", "human"], (
        "no agent reads the block with the rules"
    )
    memory = WorkingMemory(state)
    memory.write("human", "Likes tea.\nHas dyslexia.", "call-1")
    memory.passages.append(
        PassageDraft("call-2", "passage-1", "Ada has dyslexia and needs short paragraphs.", ())
    )
    memory.write("persona", "Kind and calm.", "call-3")
    outcome = await save(told, state, memory)
    assert outcome.failed == {"call-1": REFUSED, "call-2": REFUSED}
    texts = {block.label: block.value for block in outcome.blocks}
    assert texts == {"persona": "Kind and calm.", "human": "Likes tea."}


async def test_a_proposal_that_breaks_a_rule_is_refused_unless_the_owner_makes_it(
    told: SqliteStore,
) -> None:
    owned = await owned_of(told)

    def work(tx: Transaction, author: Actor) -> str:
        block = blocks.labelled(tx, owned.chain.id, "human")
        draft = ProposalDraft(owned.chain.id, "human", "Likes tea.\nHas dyslexia.", block)
        return propose(tx, draft, ChangeMetadata(author)).label

    with pytest.raises(Unwanted):
        await told.write(lambda tx: work(tx, Actor("agent", "agent-1", "Tutor")))
    assert await told.write(lambda tx: work(tx, Actor("user", owned.user.id))) == "human"
