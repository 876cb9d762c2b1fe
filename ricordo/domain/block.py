"""Core memory: blocks of text in the system prompt, and their chains of versions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.domain.git_objects import fits_git
from ricordo.domain.hidden_text import has_hidden_text
from ricordo.domain.ids import new_id
from ricordo.domain.quotas import size_of
from ricordo.domain.redaction import redact
from ricordo.domain.text import name_key, normal_name
from ricordo.errors import Conflict, Invalid, TooLong

DEFAULT_LIMIT = 100_000
NEVER_REMEMBER = "never-remember"
"""The label of the block that says what agents may not remember about a user, one rule a line.

No agent sees this block, since it names things that agents may not know (`memory.unwanted`).
"""

SKILL_LABEL = "skills/{}/SKILL"
"""The label of a skill (`features/skills`): a clone has it as the file `skills/<name>/SKILL.md`.

The prompt shows a skill's name and description, so agents do not see its block.
"""
_SKILL = re.compile(r"skills/[^/]+/SKILL")

Policy = Literal["direct", "guarded", "explicit", "propose", "read_only"]
OwnerKind = Literal["user", "agent", "block", "organization"]
# Labels are paths in a git tree and in routes of the API, so these names cannot be part of them.
_RESERVED = {
    ".",
    "..",
    ".git",
    "history",
    "versions",
    "diffs",
    "restore",
    "propose",
    "blame",
    "compare",
}
# Descriptions for two common blocks without one, since a model would read an empty description.
DEFAULT_DESCRIPTIONS = {
    "persona": (
        "The persona block: who you are. It holds your character, your manner and what guides your "
        "answers. Keep to it, so that you stay the same from one conversation to the next."
    ),
    "human": (
        "The human block: what you know about the person you are talking with, such as their name, "
        "circumstances and wishes, so that you can answer them personally."
    ),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f<>]")


@dataclass(frozen=True, slots=True)
class Chain:
    """The line of versions of one owner: a user, an agent, an organization or a standalone block.

    Attributes:
        head: The id of the newest version, which a write must name; None before the first.
        versions: The number of its versions.
        files: For each label, the id of its current text, and a number. The number counts the
            deltas that lead from a whole text to this text.
        history_bytes: The size of its whole history (`storage.history_size`).
    """

    id: str
    organization_id: str
    owner_kind: OwnerKind
    owner_id: str
    head: bytes | None = None
    versions: int = 0
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)
    history_bytes: int = 0

    def require_distinct_label(self, label: str, old_label: str | None = None) -> None:
        """Raise Conflict if a user's new label is too similar to another one.

        Labels that differ only in case or in invisible characters would be one file in a clone on
        macOS or Windows.

        Args:
            label: The new label, in normal form.
            old_label: The label that is replaced, which does not count; None for a new block.

        Raises:
            Conflict: Another label of a user's chain is too similar.
        """
        if self.owner_kind != "user":
            return
        key = name_key(label)
        for other in self.files:
            if other not in (label, old_label) and name_key(other) == key:
                raise Conflict(
                    f'Block label "{label}" differs from "{other}" only in capitals or '
                    "invisible characters. In a clone of this memory, both could become one file. "
                    "Use that block, or choose another label."
                )


@dataclass(frozen=True, slots=True)
class Block:
    """One block of text that agents see and edit.

    Attributes:
        label: The label in the chain. Agents see `seen_as` instead, if that is set.
        limit: The most characters of the value.
        read_only: Agents may not edit it, whatever its `policy` is.
        policy: The policy for agents' edits.
        version: The number of its writes; a write names the version that it was based on.
        head: The id of the version that its text comes from; None before the first.
        agent_id: The only agent that sees the user's block; None for all agents of the user.
        course: The only course whose agents see the user's block, or None.
        is_untrusted: Its text comes from untrusted content.
        shared: Edits in conversations about users change it, too. For other blocks of an agent,
            they change a copy for the user.
        seen_as: The label under which agents see a user's copy, if it differs from `label`.
        egress: The label of its egress policy (`domain/egress.py`).
        is_users: Set on reads for an agent: the block belongs to the user and not to the agent.
        is_cut: Set on reads for a list: `value` is only the beginning of the text.
        is_withheld: Set in a turn whose model may not see the text: `value` is a notice.
        shown_label: The label under which agents see the block.
        rule: The policy in force: `read_only` counts before `policy`.
    """

    id: str
    organization_id: str
    chain_id: str
    label: str
    value: str
    description: str | None = None
    limit: int = DEFAULT_LIMIT
    read_only: bool = False
    policy: Policy = "direct"
    hidden: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    version: int = 1
    head: bytes | None = None
    title: str | None = None
    schema_ref: str | None = None
    agent_id: str | None = None
    course: str | None = None
    is_untrusted: bool = False
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0
    shared: bool = False
    seen_as: str | None = None
    egress: str | None = None
    is_users: bool = False
    is_cut: bool = False
    is_withheld: bool = False
    shown_label: str = field(init=False, repr=False, compare=False)
    rule: Policy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown_label", self.seen_as or self.label)
        object.__setattr__(self, "rule", "read_only" if self.read_only else self.policy)

    @property
    def size(self) -> int:
        """The bytes of the value, the description and the metadata."""
        if self.metadata:
            metadata = json.dumps(self.metadata)
        else:
            metadata = "{}"
        return size_of(self.value) + size_of(self.description) + size_of(metadata)

    @property
    def has_hidden_text(self) -> bool:
        return has_hidden_text(self.value)

    @property
    def is_read_only(self) -> bool:
        return self.rule == "read_only"

    def require_fits(self, value: str) -> None:
        """Raise TooLong if the value exceeds the block's limit (in characters)."""
        if len(value) > self.limit:
            raise self._too_long(len(value))

    def replaced(self, old: str, new: str) -> str:
        """Return the text with every occurrence of `old` replaced.

        Raises:
            TooLong: before building a text above the block's limit.
        """
        length = len(self.value) + self.value.count(old) * (len(new) - len(old))
        if length > self.limit:
            raise self._too_long(length)
        return self.value.replace(old, new)

    def _too_long(self, length: int) -> TooLong:
        return TooLong(
            f'Block "{self.label}" would hold {length} characters, but its limit is '
            f"{self.limit}. Shorten the text or raise the limit."
        )


def is_skill(label: str) -> bool:
    """Return whether the label is that of a skill."""
    return _SKILL.fullmatch(label) is not None


SHARED_POLICY: Policy = "guarded"
"""The initial policy of a shared block, since users and quoted text can reach it (decision 0059).
"""


def new_in(chain: Chain, label: str, by: str, at: int, **fields: Any) -> Block:
    """Return a new, unsaved block of the chain.

    By default agents may only propose changes to a user's block, and to a skill.

    Args:
        chain: The chain that the block belongs to.
        label: A label in normal form, as `require_label` returns it.
        by: The id of its creator, which may be a user, an agent or another author.
        at: The time of its creation in microseconds.
        **fields: Its text and settings, and its id if it already has one. The labels "persona" and
            "human" have a default description.
    """
    if fields.get("description") is None:
        fields["description"] = DEFAULT_DESCRIPTIONS.get(label)
    return Block(
        organization_id=chain.organization_id,
        chain_id=chain.id,
        label=label,
        created_by=by,
        updated_by=by,
        created_at=at,
        updated_at=at,
        **{
            "id": new_id("block"),
            "value": "",
            "policy": "propose" if chain.owner_kind == "user" or is_skill(label) else "direct",
            **fields,
        },
    )


def require_label(label: str) -> str:
    """Return the label in normal form, or raise Invalid if it cannot name a block.

    A label may hold letters, digits and most signs, with `/` between its parts.
    """
    label = normal_name(label)
    parts = label.split("/")
    if (
        not label
        or len(label) > 255
        or any(not part.strip() for part in parts)
        or _CONTROL.search(label)
    ):
        raise Invalid(
            f'Block label "{label[:80]}" cannot be used. Use words, with "/" between them for '
            "folders."
        )
    if reserved := next((part for part in parts if part.lower() in _RESERVED), None):
        raise Invalid(
            f'Block label "{label}" cannot be used: "{reserved}" is reserved. Choose another word.'
        )
    if not fits_git(label):
        raise Invalid(
            f'Block label "{label}" cannot be used. Labels become file names in a clone of the '
            "memory, and git reserves this name or confuses it with another. Choose another word, "
            'and no folder that ends in ".md".'
        )
    require_no_secret(label)
    return label


def require_no_secret(label: str) -> None:
    """Raise Invalid if the label holds a secret.

    Every version has the label as a path, so a secret in it could not be removed later.
    """
    if kinds := redact(label).kinds:
        raise Invalid(
            f"This block label seems to hold a secret ({kinds[0]}), and memory stores no secrets. "
            "Choose another label."
        )
