"""Rules of a person about things that no agent may remember.

The person's rules are the lines of the person's block `never-remember`. An agent's edit or proposal
is refused if it adds a line that resembles a rule, or is about a topic that a rule names. The rules
do not apply to edits by the person, or by callers with the person's rights.

The rule for a forgotten text does not contain the text. It has a short tag for each word, and many
other words have the same tag.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ricordo.domain.agent import AgentState
from ricordo.domain.block import NEVER_REMEMBER, Chain
from ricordo.domain.scope import Scope
from ricordo.errors import Conflict
from ricordo.memory.edits import MemoryEdit, PassageDraft, added_lines
from ricordo.memory.line_likeness import share_subject, subject_terms
from ricordo.memory.topics import is_about, topic_of
from ricordo.storage import versions
from ricordo.storage.engine.store import Transaction

REFUSED = (
    "Nothing was saved: this person asked that things like this are never remembered. Do not save "
    "or propose it again, in any words."
)
# The bullet and the day in front of a line, and the quotes around a message.
_FRAME = re.compile(r"^[\s>*+#•–—-]*(?:\d{4}-\d{2}-\d{2}:?\s*)?|^\s*\d{1,3}[.)]\s+")
_QUOTES = "\"'“”„«» "
_LONGEST_RULE = 400  # characters
_FORGOTTEN = "What was forgotten on {day} ({salt}: {tags})"
_UNREADABLE = re.compile(r"^What was forgotten on [\d-]{10} \(([0-9a-f]{8}): ([0-9a-f ]+)\)$")
# Hex digits of a word's tag. These are 12 bits, so that a dozen words of a language share each tag.
_TAG_LENGTH = 3


class Unwanted(Conflict):
    """The person wants no agent to remember this."""


def is_unreadable_rule(line: str) -> bool:
    """Return whether a line is the rule for a forgotten text, which contains only tags."""
    return _UNREADABLE.match(line.strip()) is not None


def rule_of(line: str) -> str:
    """Return a line of memory as a rule: without a bullet, a day and quotes."""
    return " ".join(_FRAME.sub("", line).strip(_QUOTES).split())[:_LONGEST_RULE]


def unreadable_rule(line: str, day: str, *, salt: str) -> str:
    """Return the rule for a forgotten line; "" for a line without words.

    Args:
        line: The forgotten line of memory.
        day: The day on which it was forgotten, as YYYY-MM-DD.
        salt: A random id, so that tags of two rules cannot be compared.
    """
    line_terms = subject_terms(rule_of(line))
    if not line_terms:
        return ""
    salt = sha256(salt.encode()).hexdigest()[:8]
    return _FORGOTTEN.format(day=day, salt=salt, tags=" ".join(sorted(_tags(line_terms, salt))))


@dataclass(frozen=True, slots=True)
class UnreadableRule:
    """The rule for a forgotten text: the tags of its words, and their salt."""

    salt: str
    tags: frozenset[str]

    def is_like(self, line_terms: frozenset[str]) -> bool:
        return share_subject(self.tags, _tags(line_terms, self.salt))


@dataclass(frozen=True, slots=True)
class ReadableRule:
    """A rule in words, as its set of terms."""

    terms: frozenset[str]

    def is_like(self, line_terms: frozenset[str]) -> bool:
        return share_subject(self.terms, line_terms)


@dataclass(frozen=True, slots=True)
class Rules:
    """A person's rules: lines, and names of topics."""

    rules: Sequence[ReadableRule | UnreadableRule]
    topics: Sequence[str] = ()

    @classmethod
    def of_text(cls, text: str) -> "Rules":
        rules: list[ReadableRule | UnreadableRule] = []
        topics: list[str] = []
        for line in text.split("\n"):
            if topic := topic_of(rule_of(line)):
                topics.append(topic)
            elif match := _UNREADABLE.match(line.strip()):
                rules.append(UnreadableRule(match[1], frozenset(match[2].split())))
            elif line_terms := subject_terms(rule_of(line)):
                rules.append(ReadableRule(line_terms))
        return cls(rules, topics)

    def __bool__(self) -> bool:
        return bool(self.rules or self.topics)

    def refuse(self, before: str, after: str) -> bool:
        """Return whether the later text adds a line like a rule, or a line about a topic.

        A rule does not apply if the earlier text already had a line like it. A topic always
        applies.

        Args:
            before: The text before the change; empty for a new text.
            after: The text after the change.
        """
        if not self:
            return False
        if self.topics:
            lines = added_lines(before, after)
            if any(is_about(line, topic) for topic in self.topics for line in lines):
                return True
        added = [
            line_terms
            for line in added_lines(before, after)
            if (line_terms := subject_terms(rule_of(line)))
        ]
        if not added:
            return False
        known = [subject_terms(rule_of(line)) for line in before.split("\n")]
        return any(
            any(map(rule.is_like, added)) and not any(map(rule.is_like, known))
            for rule in self.rules
        )

    def require_wanted(self, before: str, after: str) -> None:
        """Raise Unwanted if a rule refuses the later text.

        Args:
            before: The text before the change; empty for a new text.
            after: The text after the change.
        """
        if self.refuse(before, after):
            raise Unwanted(REFUSED)


NO_RULES = Rules(())


def rules_of(tx: Transaction, chain: Chain | None) -> Rules:
    """Return the rules of a user's chain; the database is only asked if there are some.

    Args:
        tx: The transaction.
        chain: The chain. None, and a chain of another owner than a user, has no rules.
    """
    file = chain.files.get(NEVER_REMEMBER) if chain else None
    if chain is None or file is None or chain.owner_kind != "user":
        return NO_RULES
    return Rules.of_text(versions.read_text(tx, chain.id, file[0]))


def unwanted_calls(
    tx: Transaction,
    state: AgentState,
    edits: Sequence[MemoryEdit],
    passages: Iterable[PassageDraft],
) -> Mapping[str, str]:
    """Return the refusals of a step's calls by call id.

    If one edit is refused, all edits of its block and all edits of its call are refused.

    Args:
        tx: The transaction.
        state: The agent. Only a conversation with a user has rules.
        edits: The step's edits.
        passages: The texts that the step wants to archive.
    """
    passages = list(passages)
    user_id = state.conversation.user_id
    if not user_id or not (edits or passages):
        return {}
    scope = Scope(state.agent.organization_id)
    rules = rules_of(tx, versions.of_owner(tx, scope, "user", user_id))
    if not rules:
        return {}
    refused_calls = {draft.call_id for draft in passages if rules.refuse("", draft.text)}
    refused_blocks = {
        edit.base.id
        for edit in edits
        if edit.after and rules.refuse("" if edit.is_new else edit.base.value, edit.after.value)
    }
    return dict.fromkeys(_with_their_edits(refused_calls, refused_blocks, edits), REFUSED)


def _with_their_edits(
    refused_calls: set[str], refused_blocks: set[str], edits: Sequence[MemoryEdit]
) -> set[str]:
    """Return the refused calls, and all calls that edit the same blocks as they do."""
    count = -1
    while count != len(refused_calls) + len(refused_blocks):
        count = len(refused_calls) + len(refused_blocks)
        refused_calls |= {edit.call_id for edit in edits if edit.base.id in refused_blocks}
        refused_blocks |= {edit.base.id for edit in edits if edit.call_id in refused_calls}
    return refused_calls


def _tags(line_terms: Iterable[str], salt: str) -> frozenset[str]:
    return frozenset(
        sha256(f"{salt}\0{term}".encode()).hexdigest()[:_TAG_LENGTH] for term in line_terms
    )
