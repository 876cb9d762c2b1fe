"""The state of forgetting one fact, from which any worker can continue."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from ricordo.features.memory_care.erasure.receipts import ErasureFacts
from ricordo.features.memory_care.forgetting.needle import Match, Matches, Needle

PERHAPS = "?"  # ends the id of an item that perhaps mentions the fact


@dataclass(frozen=True, slots=True)
class Item:
    """A stored text that mentions the fact to forget.

    `key` names the text among those of its `kind`. A text with both kinds of matches makes two
    items with the same `key`. `excerpts` are the sentences in it that match. `where` names the
    agent, conversation, block or file. If `follows` is True, the owner does not see the item and
    cannot choose it: it is cleaned in every removal.
    """

    kind: str
    key: str
    match: Match
    excerpts: tuple[str, ...]
    where: dict[str, Any] = field(default_factory=dict)
    created_at: int | None = None
    follows: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.key}{PERHAPS if self.match == 'perhaps' else ''}"


class Forgetting(ErasureFacts):
    """The fact to forget, the owner's choice, and the work done so far."""

    # Empty for a conversation without a user; `conversation_id` then says where the fact is
    # removed.
    user_id: str
    conversation_id: str = ""
    # The local user. Facts from such a conversation are also proposed to this user's memory.
    local_user_id: str = ""
    # How many attempts of the job have cleaned all sources at least once.
    passes: int = 0
    # Emptied at the end of the work.
    text: str = ""
    # Chosen sentences that only perhaps mention the fact; sources with `follows` are also searched
    # for these.
    sentences: list[str] = Field(default_factory=list)
    ids: list[str] = Field(default_factory=list)
    takes_all: bool = False
    takes_perhaps: bool = False
    is_never_again: bool = True
    # Sentences that mean nearly the same count as "perhaps" (see `Needle`).
    by_meaning: bool = False
    # If False, settings that others made in the user's agents are not changed
    # (`Belongings.fixed_agents`).
    changes_agents: bool = True
    # All rows are changed; only the files still have to be rewritten.
    is_done: bool = False
    # Conversations whose prompts have to be rendered again.
    conversations: set[str] = Field(default_factory=set)
    # Partitions of the search index that have to be flushed: the kind of their rows, by owner.
    partitions: dict[str, str] = Field(default_factory=dict)
    # The rewritten chains, each with its head and the number of changed versions.
    chains: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @property
    def needle(self) -> Needle:
        return Needle(self.text, by_meaning=self.by_meaning)

    @property
    def needle_of_followers(self) -> Needle:
        return Needle("\n".join((self.text, *self.sentences)))

    def takes(self, item: Item) -> bool:
        """Return whether the item is removed, because the owner chose it or it `follows`.

        Args:
            item: A found item.
        """
        if item.follows or item.id in self.ids:
            return True
        return self.takes_all and (item.match == "exact" or self.takes_perhaps)


def matches_of(items: Iterable[Item]) -> dict[str, Matches]:
    """Return the chosen matches, by the key of their item.

    Args:
        items: The chosen items of one source.
    """
    chosen: dict[str, Matches] = {}
    for item in items:
        chosen[item.key] = chosen.get(item.key, frozenset()) | {item.match}
    return chosen
