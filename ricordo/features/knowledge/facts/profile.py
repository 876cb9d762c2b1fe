"""A profile of a user: one text within a number of tokens, in which each line has a source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ricordo.domain.block import NEVER_REMEMBER, Block
from ricordo.domain.egress import LabelledSpan
from ricordo.domain.scope import Scope, User
from ricordo.features.knowledge.facts import queries
from ricordo.features.knowledge.facts.records import OBSERVATION, FactKind, UserFact
from ricordo.features.knowledge.facts.wording import text_of
from ricordo.memory import user_memory
from ricordo.memory.line_likeness import says_same
from ricordo.memory.line_scores import line_scores
from ricordo.storage.engine.store import Transaction

# Facts of these kinds are shown in this order; of events, only the newest are shown.
_ORDER: tuple[FactKind, ...] = (
    "instruction",
    "who",
    "preference",
    "relation",
    "skill",
    "plan",
    "event",
)
HEADINGS: dict[str, str] = {
    "instruction": "How to answer",
    "who": "Who they are",
    "preference": "Preferences",
    "relation": "People around them",
    "skill": "Skills",
    "plan": "Plans",
    "event": "Recent events",
    "ended": "Earlier facts",
    "note": "Notes",
}
_MOST_EVENTS = 15
_MOST_ENDED = 30
_MOST_LINES = 500


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """One line of a profile.

    `source_id` is a fact, or a block with the number of the line. `message_ids` are the messages on
    which the line is based. `egress` is the label of its egress policies.
    """

    section: str
    text: str
    source: Literal["fact", "block"]
    source_id: str
    message_ids: tuple[str, ...] = ()
    egress: str | None = None

    @property
    def heading(self) -> str:
        return HEADINGS[self.section]


@dataclass(frozen=True, slots=True)
class Profile:
    """The lines that fit, by section, and whether others were left out."""

    lines: Sequence[ProfileLine]
    is_cut: bool

    @property
    def text(self) -> str:
        """The profile for a prompt; equal lines give equal bytes."""
        parts: list[str] = []
        section = ""
        for line in self.lines:
            if line.section != section:
                section = line.section
                parts.append(f"## {line.heading}")
            parts.append(f"- {line.text}")
        return "\n".join(parts)

    @property
    def spans(self) -> tuple[LabelledSpan, ...]:
        """The lines of `text` that have a label."""
        spans: list[LabelledSpan] = []
        position = 0
        section = ""
        for line in self.lines:
            if line.section != section:
                section = line.section
                position += 1
            end = position + 1 + line.text.count("\n")
            if line.egress:
                spans.append(LabelledSpan(line.section, line.egress, position, end))
            position = end
        return tuple(spans)


def profile_of(
    tx: Transaction,
    scope: Scope,
    user: User,
    *,
    limit: int,
    question: str,
    tokens_of: Callable[[str], int],
) -> Profile:
    """Return the best lines about a user within `limit` tokens.

    Args:
        tx: The transaction.
        scope: The caller, who may read the user's memory.
        user: The user.
        limit: The most tokens of the profile's text.
        question: If not all lines fit, instructions are preferred, and then lines that share words
            with the question. With "", earlier lines are preferred. Facts come before lines of
            blocks, and are ordered by kind.
        tokens_of: Returns the number of tokens of a text.
    """
    lines = list(_lines(tx, scope, user, has_question=bool(question)))[:_MOST_LINES]
    return _fitting(lines, question, limit, tokens_of)


def facts_profile(
    tx: Transaction, user_id: str, *, limit: int, tokens_of: Callable[[str], int]
) -> Profile:
    """Return a user's current facts within `limit` tokens, without lines of blocks.

    Equal facts give equal lines.

    Args:
        tx: The transaction.
        user_id: The user.
        limit: The most tokens of the profile's text.
        tokens_of: Returns the number of tokens of a text.
    """
    return _fitting(list(_current_lines(tx, user_id))[:_MOST_LINES], "", limit, tokens_of)


def _fitting(
    lines: Sequence[ProfileLine], question: str, limit: int, tokens_of: Callable[[str], int]
) -> Profile:
    """Return the best lines that fit `limit` tokens, in the given order."""
    scores = line_scores([line.text for line in lines], question)
    # Instructions are chosen first: they apply to every answer.
    by_rank = sorted(
        range(len(lines)),
        key=lambda index: (lines[index].section != "instruction", -scores[index], index),
    )
    chosen: list[int] = []
    headings: set[str] = set()
    room = limit
    for line_index in by_rank:
        line = lines[line_index]
        cost = tokens_of(f"- {line.text}\n")
        if line.section not in headings:
            cost += tokens_of(f"## {line.heading}\n")
        if cost > room:
            continue
        room -= cost
        headings.add(line.section)
        chosen.append(line_index)
    return Profile([lines[index] for index in sorted(chosen)], len(chosen) < len(lines))


def _current_lines(tx: Transaction, user_id: str) -> Iterator[ProfileLine]:
    """Yield the facts that hold now, by their kind."""
    now = tx.clock.now()
    current = [
        fact
        for fact in queries.of_states(tx, user_id, "current")
        if not fact.is_over(now) and not fact.slot.startswith(OBSERVATION)
    ]
    for kind in _ORDER:
        facts = [fact for fact in current if fact.kind == kind]
        if kind == "event":
            facts = sorted(facts, key=lambda fact: -fact.holds_from)[:_MOST_EVENTS]
        yield from (_fact_line(kind, fact) for fact in facts)


def _lines(
    tx: Transaction, scope: Scope, user: User, *, has_question: bool
) -> Iterator[ProfileLine]:
    current = list(_current_lines(tx, user.id))
    yield from current
    if has_question:
        ended = queries.of_states(tx, user.id, "ended", limit=_MOST_ENDED)
        yield from (_fact_line("ended", fact) for fact in ended)
    sentences = [line.text for line in current]
    blocks = user_memory.listed_without_skills(tx, user_memory.open_memory(tx, scope, user.id))
    for block in blocks:
        if block.label != NEVER_REMEMBER:
            yield from _block_lines(block, sentences)


def _fact_line(section: str, fact: UserFact) -> ProfileLine:
    message_ids = tuple(dict.fromkeys(piece.message_id for piece in fact.evidence))
    return ProfileLine(section, text_of(fact), "fact", fact.id, message_ids, egress=fact.egress)


def _block_lines(block: Block, sentences: Sequence[str]) -> Iterator[ProfileLine]:
    """Yield the lines of a block that no fact already says."""
    for number, line in enumerate(block.value.split("\n"), 1):
        text = line.strip(" -*•\t")
        if not any(map(str.isalnum, text)) or line.startswith("#"):
            continue
        if not any(says_same(text, sentence) for sentence in sentences):
            yield ProfileLine("note", text, "block", f"{block.id}#{number}")
