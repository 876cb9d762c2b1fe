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

    `key` is unique among the items of its `kind`. `excerpts` are the sentences in it that mention
    the fact. `where` names the agent, conversation, block or file. An item that `follows` is not
    listed, but is cleaned together with any other item.
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
    # The number of complete passes over all sources.
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
    # Part of the choice may be by meaning.
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

    def note_elsewhere(self, sentences: Iterable[str]) -> None:
        """Add sentences about data that remains, each once.

        Args:
            sentences: Sentences for the receipt.
        """
        self.elsewhere = list(dict.fromkeys((*self.elsewhere, *sentences)))

    @property
    def needle(self) -> Needle:
        return Needle(self.text, by_meaning=self.by_meaning)

    @property
    def needle_of_followers(self) -> Needle:
        return Needle("\n".join((self.text, *self.sentences)))

    def takes(self, item: Item) -> bool:
        """Return whether the owner chose the item.

        Args:
            item: A found item. One that `follows` others is always taken.
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
