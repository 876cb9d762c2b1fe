"""Core memory: blocks of text that stand in the system prompt, and the chains of versions they belong to."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from ricordo.errors import Invalid, TooLong

DEFAULT_LIMIT = 100_000

Policy = Literal["direct", "guarded", "explicit", "propose", "read_only"]
OwnerKind = Literal["user", "agent", "block"]
# Labels are paths in a git tree and routes in the API, so these words cannot be parts of them (design §4).
_RESERVED = {".", "..", ".git", "history", "versions", "diffs", "restore", "propose", "blame", "compare"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f<>]")


@dataclass(frozen=True, slots=True)
class Chain:
    """Whose history a block is part of: a user's, an agent's, or its own. `head` is the tip, the compare-and-swap point."""

    id: str
    organization_id: str
    owner_kind: OwnerKind
    owner_id: str
    head: bytes | None = None
    versions: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """One block: what agents see and edit. `version` counts its writes; a write names the version it was made from."""

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
    created_by: str | None = None
    updated_by: str | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def is_read_only(self) -> bool:
        """Whether agents may not change it, by its flag or by its policy."""
        return self.read_only or self.policy == "read_only"

    def require_fits(self, value: str) -> None:
        """Raise TooLong where the value is longer than the block's limit (both in characters)."""
        if len(value) > self.limit:
            raise TooLong(
                f'Block "{self.label}" would hold {len(value)} characters, but its limit is {self.limit}. '
                "Shorten the text or raise the limit."
            )


def require_label(label: str) -> str:
    """The label, if it can name a block: letters, digits and most signs, `/` between parts."""
    parts = label.split("/")
    if not label or len(label) > 255 or any(not part.strip() for part in parts) or _CONTROL.search(label):
        raise Invalid(f'Block label "{label[:80]}" cannot be used. Use words, with "/" between them for folders.')
    if taken := next((part for part in parts if part.lower() in _RESERVED), None):
        raise Invalid(f'Block label "{label}" cannot be used: "{taken}" has a meaning of its own. Choose another word.')
    return label
