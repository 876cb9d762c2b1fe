"""Several proposals for one block.

They wait side by side, a newer one replaces an older one only for the same lines, and nothing waits
twice.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Conflict
from ricordo.memory import approval, user_memory
from ricordo.memory import proposals as proposing
from ricordo.memory.approval import Approved, Conflicted
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose
from ricordo.memory.text import merge_changes, unchanged_lines
from ricordo.storage import proposals
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import ADA, TUTOR, owned_of, put

COACH = Actor("agent", "agent-coach", "Coach")
TEXT = "Name: Ada\nLikes: tea\nLives in: Turin\n"


async def drafted(
    store: SqliteStore, value: str | None, by: Actor = TUTOR, **fields: Any
) -> Proposal:
    """Let an agent that sees the current block propose an edit."""
    owned = await owned_of(store)

    def work(tx: Transaction) -> Proposal:
        block = user_memory.find(tx, owned, "human")
        return propose(
            tx,
            ProposalDraft(owned.chain.id, "human", value, block, **fields),
            ChangeMetadata(by, "So"),
        )

    return await store.write(work)


async def statuses(store: SqliteStore, *made: Proposal) -> list[str]:
    return [
        (await store.read(lambda tx, id=one.id: proposals.get(tx, Scope(), id))).status
        for one in made
    ]  # type: ignore[misc]


async def waiting(store: SqliteStore) -> list[str]:
    chain_id = (await owned_of(store)).chain.id
    return [one.id for one in await store.read(lambda tx: proposals.waiting(tx, chain_id))]


async def approved(store: SqliteStore, *made: Proposal) -> str:
    """Approve these in this order, without a conflict; return the block's text."""
    for one in made:
        done = await store.write(lambda tx, id=one.id: approval.approve(tx, Scope(), id, ADA))  # type: ignore[misc]
        assert isinstance(done, Approved), one.value
    owned = await owned_of(store)
    return (await store.read(lambda tx: user_memory.require(tx, owned, "human"))).value


# Two edits of one text by an agent that did not see its first edit, and the text after approvals.
BESIDE: list[tuple[str, str, str, str]] = [
    (
        TEXT,
        TEXT.replace("tea", "rum"),
        TEXT.replace("Turin", "Rome"),
        "Name: Ada\nLikes: rum\nLives in: Rome\n",
    ),
    (TEXT, TEXT + "Reads.\n", TEXT + "Has a cat.\n", TEXT + "Reads.\nHas a cat.\n"),
    (
        TEXT,
        TEXT + "Has a cat\n",
        TEXT + "Has a cat allergy\n",
        TEXT + "Has a cat\nHas a cat allergy\n",
    ),
    (TEXT, TEXT + "Reads.", TEXT + "\nHas a cat.\n", TEXT + "Reads.\n\nHas a cat."),
    (TEXT.strip(), TEXT + "Reads.", TEXT.strip() + "\nHas a cat.", TEXT + "Reads.\nHas a cat."),
    (
        TEXT,
        TEXT.replace("Turin", "Rome"),
        TEXT + "Has a cat.\n",
        TEXT.replace("Turin", "Rome") + "Has a cat.\n",
    ),
    (
        TEXT,
        "Reads.\n" + TEXT,
        TEXT.replace("Ada", "Ada L."),
        "Reads.\n" + TEXT.replace("Ada", "Ada L."),
    ),
    ("", "Reads.", "Has a cat.", "Reads.\nHas a cat."),
    ("", "Reads.\n", "Has a cat.", "Reads.\nHas a cat.\n"),
    (
        "# Likes\n# Hates\n",
        "# Likes\n- tea\n# Hates\n",
        "# Likes\n# Hates\n- tea\n",
        "# Likes\n- tea\n# Hates\n- tea\n",
    ),
]


@pytest.mark.parametrize(("text", "one", "two", "both"), BESIDE)
async def test_proposals_for_different_lines_can_be_approved_in_any_order(
    store: SqliteStore, text: str, one: str, two: str, both: str
) -> None:
    for backwards in (False, True):
        await put(store, "human", text)
        made = [await drafted(store, one), await drafted(store, two)]
        assert await waiting(store) == [proposal.id for proposal in made]
        result = await approved(store, *(made[::-1] if backwards else made))
        assert sorted(result.split("\n")) == sorted(both.split("\n"))
        assert result == both or backwards


SAME_LINES: list[tuple[str | None, str | None]] = [
    (TEXT.replace("tea", "green tea"), TEXT.replace("tea", "black tea")),
    (TEXT.replace("Likes: tea\n", ""), TEXT.replace("tea", "rum")),
    (TEXT.replace("tea", "rum"), "Name: Ada\n"),
    # Newer proposals that contain the older one: the same text, and a longer line.
    (TEXT + "Reads.\n", TEXT + "Reads.\nHas a cat."),
    (TEXT + "- Reads.", TEXT + "- Reads. Has a cat.\n"),
    (TEXT.replace("tea", "rum"), TEXT.replace("tea", "rum") + "Reads.\n"),
    # A proposal to delete a block, and a proposal to keep it.
    (TEXT.replace("tea", "rum"), None),
    (None, TEXT.replace("tea", "rum")),
]


@pytest.mark.parametrize(("one", "two"), SAME_LINES)
async def test_a_newer_proposal_for_the_same_lines_supersedes_the_agents_older_one(
    store: SqliteStore, one: str | None, two: str | None
) -> None:
    await put(store, "human", TEXT)
    older, others, newer = (
        await drafted(store, one),
        await drafted(store, one, COACH),
        await drafted(store, two),
    )
    assert await statuses(store, older, others, newer) == ["superseded", "open", "open"]
    assert (
        await store.read(lambda tx: proposals.get(tx, Scope(), older.id))
    ).superseded_by == newer.id


async def test_proposals_are_compared_by_lines_also_after_the_owner_wrote(
    store: SqliteStore,
) -> None:
    await put(store, "human", TEXT)
    likes, lives = (
        await drafted(store, TEXT.replace("tea", "rum")),
        await drafted(store, TEXT.replace("Turin", "Rome")),
    )
    now = "# Me\n" + TEXT.replace("tea", "coffee")
    await put(store, "human", now)
    again = await drafted(store, now.replace("coffee", "gin"))
    beside = await drafted(store, now.replace("Ada", "Ada L."))
    assert await statuses(store, likes, lives, again, beside) == [
        "superseded",
        "open",
        "open",
        "open",
    ]
    text = await approved(store, beside, again, lives)
    assert text == "# Me\nName: Ada L.\nLikes: gin\nLives in: Rome\n"


async def test_the_versions_in_between_show_which_of_several_equal_lines_stayed(
    store: SqliteStore,
) -> None:
    """Only the text that the proposal was made from shows which x is to be replaced."""
    await put(store, "human", "x\nx")
    made = [await drafted(store, text) for text in ("I\nx\nx", "x\nLast", "First\nx")]
    assert merge_changes("x\nx", "I\nx\nLast", "First\nx") is None
    assert await approved(store, *made) == "I\nFirst\nLast"
    # A change of the owner in those lines is still a conflict.
    await put(store, "human", "x\nx")
    third = await drafted(store, "First\nx")
    await put(store, "human", "y\nx")
    await put(store, "human", "y\nz")
    done = await store.write(lambda tx: approval.approve(tx, Scope(), third.id, ADA))
    assert isinstance(done, Conflicted)


async def test_a_proposed_label_conflicts_with_no_edit_and_superseding_keeps_the_edit(
    store: SqliteStore,
) -> None:
    await put(store, "human", TEXT)
    edit, first = (
        await drafted(store, TEXT.replace("tea", "rum")),
        await drafted(store, TEXT, new_label="you"),
    )
    renamed = await drafted(store, TEXT, new_label="profile")
    twice = await drafted(store, TEXT, new_label="profile")
    assert (twice.id, twice.is_repeated) == (renamed.id, True)
    assert await statuses(store, edit, first, renamed) == ["open", "superseded", "open"]
    owned = await owned_of(store)
    for one in (renamed, edit):
        done = await store.write(lambda tx, id=one.id: approval.approve(tx, Scope(), id, ADA))  # type: ignore[misc]
        assert isinstance(done, Approved)
    block = await store.read(lambda tx: user_memory.require(tx, owned, "profile"))
    assert block.value == TEXT.replace("tea", "rum")


SECRET = "sk-" + "a1B2c3D4" * 6
REPEATED: list[tuple[str | None, str | None]] = [
    (TEXT + "Reads.\n", TEXT + "Reads.\n"),
    (TEXT + "Reads.\n", TEXT + "Reads."),
    (TEXT + "Reads.\nHas a cat.\n", TEXT + "Reads.\n"),
    (TEXT + "Reads. Has a cat.\n", TEXT + "Reads.\n"),
    (TEXT.replace("tea", "rum"), TEXT.replace("tea", "rum").rstrip("\n")),
    (f"{TEXT}The key: {SECRET}\n", f"{TEXT}The key: {SECRET}"),
    (None, None),
]


@pytest.mark.parametrize(("one", "two"), REPEATED)
async def test_a_repeated_proposal_returns_the_waiting_one(
    store: SqliteStore, one: str | None, two: str | None
) -> None:
    await put(store, "human", TEXT)
    made, again, others = (
        await drafted(store, one),
        await drafted(store, two),
        await drafted(store, two, COACH),
    )
    assert (made.is_repeated, again.is_repeated, others.is_repeated) == (False, True, False)
    assert again == replace(made, is_repeated=True)
    assert await waiting(store) == [made.id, others.id]


async def test_a_text_that_the_block_already_has_is_not_proposed(store: SqliteStore) -> None:
    block = await put(store, "human", TEXT)
    owned = await owned_of(store)
    await put(store, "human", TEXT + "Reads.\nHas a cat.\n")

    def work(tx: Transaction, base: Any, value: str) -> Proposal:
        draft = ProposalDraft(owned.chain.id, "human", value, base)
        return propose(tx, draft, ChangeMetadata(TUTOR, "So"))

    for base, value in ((block, TEXT.rstrip("\n")), (block, TEXT + "Reads."), (None, "Has a cat.")):
        with pytest.raises(Unchanged, match="says this already"):
            await store.write(lambda tx, base=base, value=value: work(tx, base, value))  # type: ignore[misc]
    assert await waiting(store) == []


async def test_two_proposals_for_a_new_block_are_both_in_it(store: SqliteStore) -> None:
    await put(store, "other", "x")
    made = [
        await drafted(store, "Reads.", description="Who"),
        await drafted(store, "Has a cat.", description="Her"),
    ]
    assert len(await waiting(store)) == 2
    assert await approved(store, *made) == "Reads.\nHas a cat."
    owned = await owned_of(store)
    assert (
        await store.read(lambda tx: user_memory.require(tx, owned, "human"))
    ).description == "Who"


async def test_an_empty_new_block_is_proposed_once(store: SqliteStore) -> None:
    await put(store, "other", "x")
    first, again, filled = [await drafted(store, text) for text in ("", "\n", "Reads.")]
    assert (again.id, again.is_repeated, filled.is_repeated) == (first.id, True, False)
    assert await approved(store, first, filled) == "Reads."


async def test_a_proposal_for_a_block_created_for_another_agent_conflicts(
    store: SqliteStore,
) -> None:
    await put(store, "other", "x")
    made = await drafted(store, "Reads.", COACH)
    await put(store, "human", "Has a cat.", agent_id=TUTOR.id)
    done = await store.write(lambda tx: approval.approve(tx, Scope(), made.id, ADA))
    assert isinstance(done, Conflicted)
    assert "created for another agent" in (done.proposal.note or "")
    settled = await store.write(
        lambda tx: approval.approve(tx, Scope(), made.id, ADA, body="Has a cat. Reads.")
    )
    assert isinstance(settled, Approved)


async def test_at_most_a_hundred_proposals_of_one_agent_wait_for_a_block(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposing._AUTHOR_LIMIT == 100
    monkeypatch.setattr(proposing, "_AUTHOR_LIMIT", 20)
    await put(store, "human", TEXT)
    for number in range(20):
        await drafted(store, f"{TEXT}{number}\n")
    with pytest.raises(Conflict, match="20 of your changes"):
        await drafted(store, f"{TEXT}more\n")
    assert (await drafted(store, f"{TEXT}7\n")).is_repeated
    fuller = await drafted(store, f"{TEXT}7\n8\n")
    await drafted(store, f"{TEXT}more\n", COACH)
    left = await waiting(store)
    assert (len(left), fuller.id in left) == (20, True)


async def test_at_most_a_thousand_proposals_of_all_agents_wait_for_an_owner(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposing._OWNER_LIMIT == 1000
    monkeypatch.setattr(proposing, "_OWNER_LIMIT", 8)
    await put(store, "human", TEXT)
    made = [
        await drafted(store, f"{TEXT}{number}\n", Actor("agent", f"agent-{number}", "A"))
        for number in range(4)
    ]
    owned = await owned_of(store)

    def another(tx: Transaction, label: str, by: Actor = TUTOR) -> Proposal:
        return propose(tx, ProposalDraft(owned.chain.id, label, "New"), ChangeMetadata(by, "So"))

    for number in range(4):
        await store.write(lambda tx, number=number: another(tx, f"label-{number}"))  # type: ignore[misc]
    for refused in (lambda tx: another(tx, "label-9"), lambda tx: another(tx, "label-1", COACH)):
        with pytest.raises(Conflict, match="8 changes of this memory wait for its owner already"):
            await store.write(refused)
    # These are accepted: a proposal that already waits, one that replaces another, and one by the
    # owner.
    assert (await drafted(store, f"{TEXT}1\n", made[1].author)).id == made[1].id
    await drafted(store, f"{TEXT}1\n2\n", made[1].author)
    await drafted(store, f"{TEXT}Mine\n", ADA)
    await store.write(lambda tx: approval.reject(tx, Scope(), made[0].id, ADA))
    await store.write(lambda tx: approval.reject(tx, Scope(), made[2].id, ADA))
    await drafted(store, f"{TEXT}9\n", COACH)


# A hundred proposals for a text of 4,000 lines, each at its position or all at one.
LONG = [f"Line {number} of a long text." for number in range(4000)]
FLOODS: dict[str, Callable[[int], list[str]]] = {
    "appended": lambda number: [*LONG, f"Fact {number}."],
    "in other lines": lambda number: [
        *LONG[: number * 39],
        f"Fact {number}.",
        *LONG[number * 39 + 1 :],
    ],
    "at both ends": lambda number: [f"First {number}.", *LONG, f"Last {number}."],
    "of equal lines": lambda number: (
        ["x"] * number + [f"Fact {number}."] + ["x"] * (4000 - number) + ["End."]
    ),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "in other lines" else [pytest.mark.soak])
        for kind in FLOODS
    ],
)
async def test_a_new_proposal_among_a_hundred_for_a_long_text_compares_few_lines(
    store: SqliteStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "human", "\n".join(["x"] * 4000 if "equal" in kind else LONG), limit=1_000_000)
    compared: list[int] = []

    def counted(old: Sequence[str], new: Sequence[str]) -> tuple[dict[int, int], bool]:
        compared.append(len(old) + len(new))
        return unchanged_lines(old, new)

    first, owned = await drafted(store, "\n".join(FLOODS[kind](0))), await owned_of(store)

    def flood(tx: Transaction) -> None:
        block, (blob, depth) = user_memory.require(tx, owned, "human"), owned.chain.files["human"]
        for number in range(1, 98):
            one = replace(first, id=new_id("proposal"), value="\n".join(FLOODS[kind](number)))
            proposals.insert_one(tx, one, (blob, depth, block.value))

    await store.write(flood)
    monkeypatch.setattr("ricordo.memory.text.unchanged_lines", counted)
    made = await drafted(store, "\n".join(FLOODS[kind](99)))
    assert sum(compared) <= 2 * proposing._COMPARISON_LIMIT, len(compared)
    compared.clear()
    assert (await drafted(store, "\n".join(FLOODS[kind](99)))).id == made.id
    await put(
        store,
        "human",
        "\n".join(["x"] * 4000 if "equal" in kind else [*LONG[:2000], "New.", *LONG[2001:]]),
    )
    again = await drafted(
        store, "\n".join(line.replace("Fact 99", "A fact") for line in FLOODS[kind](99))
    )
    assert sum(compared) <= 4 * proposing._COMPARISON_LIMIT, len(compared)
    assert again.waits


async def test_repeated_sentences_in_many_added_lines_are_searched_in_few_pairs(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "human", TEXT, limit=1_000_000)
    searched: list[str] = []
    tells = proposing.says_sentence
    monkeypatch.setattr(
        proposing,
        "says_sentence",
        lambda line, sentence: searched.append(line) or tells(line, sentence),
    )
    first = await drafted(
        store, TEXT + "\n".join([*(f"Fact {number}." for number in range(2000)), "Reads. Sings."])
    )
    second = await drafted(store, TEXT + "Sings.\n" * 2000)
    assert await waiting(store) == [first.id, second.id]
    assert len(searched) <= 2 * proposing._SENTENCE_PAIR_LIMIT


LINES = ("", "", "# Likes", "- tea", "- maths", "# Goals", "Name: Ada", "Lives in Turin.", "- tea")


def edited(base: Sequence[str], fact: str, chance: random.Random) -> str:
    """Return the text with a fact in it, as models write it.

    The fact is at the end, between lines, below a heading, or replaces a line.
    """
    lines, place = list(base), chance.randrange(len(base) + 1)
    match chance.randrange(5):
        case 0:
            lines += [fact]
        case 1:
            lines += ["", "# News", fact]
        case 2:
            lines[place : place + 1] = [f"{base[place]} {fact}"] if place < len(base) else [fact]
        case _:
            lines.insert(place, fact)
    return "\n".join(lines) + chance.choice(("", "\n"))


@pytest.mark.parametrize(
    "number_of_days",
    [pytest.param(8, id="short"), pytest.param(300, id="long", marks=pytest.mark.soak)],
)
async def test_no_fact_is_lost_in_whatever_order_proposals_are_approved(
    store: SqliteStore, number_of_days: int
) -> None:
    """The block then holds all proposals, except lines that a newer edit replaced."""
    chance = random.Random(13)  # noqa: S311 - repeatable
    await put(store, "other", "x")
    owned = await owned_of(store)

    def day(tx: Transaction, label: str) -> tuple[int, int]:
        base = [chance.choice(LINES) for _ in range(chance.randrange(8))]
        user_memory.put(tx, owned, label, "\n".join(base) + chance.choice(("", "\n")), ADA)
        facts = [f"Fact {number} of {label}." for number in range(8)]
        for fact in facts:
            block = user_memory.require(tx, owned, label)
            draft = ProposalDraft(owned.chain.id, label, edited(base, fact, chance), block)
            made = propose(tx, draft, ChangeMetadata(TUTOR, "So"))
            assert not made.is_repeated
        left = proposals.waiting_by(tx, owned.chain.id, label, TUTOR)
        told = [fact for fact in facts if any(fact in (one.value or "") for one in left)]
        chance.shuffle(left)
        for one in left:
            assert isinstance(approval.approve(tx, Scope(), one.id, ADA), Approved), (
                base,
                one.value,
            )
        text = user_memory.require(tx, owned, label).value
        assert [fact for fact in told if text.count(fact) != 1] == [], (base, text)
        assert proposals.waiting_by(tx, owned.chain.id, label, TUTOR) == []
        user_memory.delete(tx, owned, label, ADA)
        return len(left), len(told)

    days = [
        await store.write(lambda tx, label=f"day-{number}": day(tx, label))
        for number in range(number_of_days)
    ]  # type: ignore[misc]
    assert min(len(days), *(count for count, _ in days)) > 0
    assert all(count == facts for count, facts in days)
    assert sum(count == 8 for count, _ in days) > number_of_days / 2
