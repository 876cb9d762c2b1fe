"""The nouns of facts: a stored fact, its evidence, and a draft of one."""

from dataclasses import dataclass
from typing import Literal

FactKind = Literal["who", "preference", "plan", "event", "relation", "skill", "instruction"]
FactState = Literal["proposed", "current", "ended", "replaced", "rejected"]
FactSource = Literal["rules", "model", "user"]
Relation = Literal["same", "more_precise", "contradicts", "both_hold"]
Precision = Literal["day", "week", "month", "season", "year"]
# The subject of facts about the user.
USER = ""
# The kind of slot of observations, which only support other facts. Profiles leave them out.
OBSERVATION = "observation:"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The part of a message that a fact is based on."""

    message_id: str
    quote: str


@dataclass(frozen=True, slots=True)
class StatedTime:
    """The time that a sentence names, in microseconds UTC. The end is not included."""

    start: int
    end: int
    precision: Precision


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact as read from messages, not yet checked or stored.

    `subject` is the person or thing that the fact is about; `USER` is the user. `slot` is the
    property of which the fact gives the `value`, such as "home"; "" if there is none. With
    `has_ended` the fact held earlier, and with `corrects` the wording says that something has
    changed. `old_id` and `relation` are a model's claim about its relation to a stored fact.
    """

    sentence: str
    kind: FactKind
    evidence: tuple[Evidence, ...]
    subject: str = USER
    slot: str = ""
    value: str = ""
    time: StatedTime | None = None
    has_ended: bool = False
    corrects: bool = False
    confidence: float | None = None
    source: FactSource = "rules"
    old_id: str | None = None
    relation: Relation | None = None


@dataclass(frozen=True, slots=True)
class UserFact:
    """A stored fact about a user.

    `subject`, `slot` and `value` are as in `FactDraft`. Times are in microseconds. `starts_at` and
    `ends_at` are the time that the sentence names; `holds_from` and `holds_until` are the time for
    which the fact holds. `replaces_id` is the fact to which it has `relation`; `replacement_id` is
    the fact that replaced it. `egress` is the label of the egress policy of its kind.
    """

    id: str
    organization_id: str
    user_id: str
    sentence: str
    kind: FactKind
    source: FactSource
    state: FactState
    said_at: int
    holds_from: int
    created_at: int
    subject: str = USER
    slot: str = ""
    value: str = ""
    agent_id: str | None = None
    conversation_id: str | None = None
    starts_at: int | None = None
    ends_at: int | None = None
    precision: Precision | None = None
    evidence: tuple[Evidence, ...] = ()
    confidence: float | None = None
    holds_until: int | None = None
    relation: Relation | None = None
    replaces_id: str | None = None
    replacement_id: str | None = None
    resolved_at: int | None = None
    resolved_by: str | None = None
    egress: str | None = None

    @property
    def stated_time(self) -> StatedTime | None:
        """The time that the sentence names."""
        if self.starts_at is None or self.ends_at is None or self.precision is None:
            return None
        return StatedTime(self.starts_at, self.ends_at, self.precision)

    def is_over(self, time: int) -> bool:
        return self.holds_until is not None and self.holds_until <= time
