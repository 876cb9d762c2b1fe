"""The plan of a talk with a group. No I/O.

The plan is fixed at the start, so the talk continues in the same way after a kill.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ricordo.domain.text import normal_text
from ricordo.features.groups.records import ManagerType
from ricordo.search.words import SPACELESS

TALKING: tuple[ManagerType, ...] = ("round_robin", "dynamic", "supervisor")
# A letter or digit, without the underlines of Markdown.
_LETTER = r"[^\W_]"
_HAS_BORDER = re.compile(rf"(?![{SPACELESS}]){_LETTER}")
EntryKind = Literal["speaker", "manager", "resumed"]


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent of the group, with the name that it had when the talk began."""

    id: str
    name: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class TalkPlan:
    """A talk: the group in its state at the start.

    The otids of its turns begin with `key`.
    """

    kind: ManagerType
    group_id: str
    key: str
    members: tuple[Speaker, ...]
    manager: Speaker | None = None
    description: str = ""
    termination_token: str | None = None
    max_turns: int | None = None

    @property
    def rounds(self) -> int:
        """The number of turns that members take; in a dynamic group the most."""
        if self.max_turns is not None:
            return self.max_turns
        return len(self.members)

    @property
    def everyone(self) -> tuple[Speaker, ...]:
        return (*self.members, *((self.manager,) if self.manager else ()))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "TalkPlan":
        """Return the plan from its stored form.

        Args:
            stored: The form that `to_json` returns.
        """
        manager = stored.get("manager")
        members = tuple(Speaker(**member) for member in stored["members"])
        return cls(
            **{**stored, "members": members, "manager": Speaker(**manager) if manager else None}
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One turn of a talk, with its agent and runs.

    After a kill there may be several runs. A `resumed` entry continues the turn before it, which
    waited for an approval.
    """

    agent_id: str
    kind: EntryKind
    run_ids: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"agent_id": self.agent_id, "kind": self.kind, "run_ids": list(self.run_ids)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Entry":
        """Return the entry from its stored form.

        Args:
            stored: The form that `to_json` returns.
        """
        return cls(stored["agent_id"], stored["kind"], tuple(stored["run_ids"]))


def named_member(answer: str, members: Sequence[Speaker], last_id: str | None) -> Speaker | None:
    """Return the member whose name or id occurs in the manager's answer.

    If several occur, it is the last of them in the order of `members`. Case makes no difference. A
    name inside a longer name or another word does not count: "Anna" and "cannot" do not name "Ann".

    Args:
        answer: The manager's text.
        members: All members of the group.
        last_id: The last speaker, who is never chosen; None if each member may be.
    """
    text = normal_text(answer).casefold()
    named_ids: set[str] = set()
    # Search the longest names first, and remove each from the text once it is found.
    for member in sorted(members, key=lambda member: -len(member.name)):
        for name in (member.id, member.name):
            normal_name = normal_text(name).strip().casefold()
            if not normal_name:
                continue
            text, count = _whole(normal_name).subn("\n", text)
            if count:
                named_ids.add(member.id)
    may_speak = [member for member in members if member.id in named_ids and member.id != last_id]
    return may_speak[-1] if may_speak else None


def _whole(name: str) -> re.Pattern[str]:
    """Return the pattern of a name that is no part of a longer word.

    In scripts without spaces, such as Japanese and Thai, names have no borders: they count
    everywhere.
    """
    before = rf"(?<!{_LETTER})" if _HAS_BORDER.match(name[0]) else ""
    after = rf"(?!{_LETTER})" if _HAS_BORDER.match(name[-1]) else ""
    return re.compile(f"{before}{re.escape(name)}{after}")


def next_in_order(members: Sequence[Speaker], last_id: str | None) -> Speaker:
    """Return the member after the last speaker, or else the first member.

    Args:
        members: The members in their order, at least one.
        last_id: The last speaker; None at the start of the talk.
    """
    ids = [member.id for member in members]
    index = ids.index(last_id) + 1 if last_id in ids else 0
    return members[index % len(members)]
