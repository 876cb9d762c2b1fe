"""The source of blocks: their texts, versions and proposals, in the chains of a user."""

import re
from collections import defaultdict
from collections.abc import Sequence, Set
from functools import partial
from typing import Any

from sqlalchemy import select

from ricordo.features.memory_care.forgetting.belonging_queries import Belongings
from ricordo.features.memory_care.forgetting.needle import (
    Match,
    Matches,
    Needle,
    blank,
    change_strings,
    remove,
    strings_in,
)
from ricordo.features.memory_care.forgetting.state import Forgetting, Item, matches_of
from ricordo.memory.text import line_changes
from ricordo.storage import rewriting, versions
from ricordo.storage.engine.store import Transaction
from ricordo.storage.rewriting import Place, TextChanges
from ricordo.storage.schema.memory_tables import (
    agents_blocks,
    blobs,
    blocks,
    blocks_log,
    chains,
    commits,
    is_in_chain,
    proposals,
)

_EXCERPT = 300
_SEPARATORS = re.compile(r"[-_./]")  # between the words of a block's name
_MOST_EXCERPTS = 20
_VERSIONS = select(commits.c.label, commits.c.blob, commits.c.reason).where(is_in_chain(commits))
_BLOCKS = select(blocks).where(is_in_chain(blocks))
_PROPOSALS = select(proposals).where(is_in_chain(proposals)).order_by(proposals.c.seq)
_LOG = select(blocks_log.c.changed, blocks_log.c.deleted_label).where(is_in_chain(blocks_log))
_TEXTS = select(blobs.c.id).where(is_in_chain(blobs))


class _Finds:
    """The items of one chain that mention the fact.

    `texts` are the chain's stored texts that mention the fact, by id.
    """

    def __init__(self, chain_id: str, needle: Needle, fixed_labels: Set[str]) -> None:
        self.texts: dict[bytes, str] = {}
        self._chain_id = chain_id
        self._needle = needle
        self._fixed_labels = fixed_labels
        self._sentences: defaultdict[tuple[str, str, Match], dict[str, None]] = defaultdict(dict)
        self._places: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def add(self, kind: str, label: str, *texts: str | None, proposal_id: str = "") -> None:
        if label in self._fixed_labels:
            return
        key = proposal_id or f"{self._chain_id}/{label}"
        for text in filter(None, texts):
            for unit in self._needle.units(text):
                sentence = text[unit.start : unit.end][:_EXCERPT]
                self._sentences[kind, key, unit.match][sentence] = None
                self._places[key] |= {"chain_id": self._chain_id, "label": label}

    def add_version(self, row: Any) -> None:
        text = self._text(row.blob)
        self.add("version", row.label, text, row.reason)
        if text and row.label not in self._fixed_labels:
            row_position = self._places[f"{self._chain_id}/{row.label}"]
            row_position["versions"] = row_position.get("versions", 0) + 1

    def add_proposal(self, row: Any) -> None:
        """Add a proposal if its texts or comments mention the fact.

        Args:
            row: A row of the table of proposals.
        """
        texts = (self._text(row.blob), self._text(row.base_blob))
        comments = (row.description, row.reasoning, row.note)
        self.add("proposal", row.label, *texts, *comments, proposal_id=row.id)
        if row.id in self._places:
            self._places[row.id]["status"] = row.status

    def items(self) -> list[Item]:
        return [
            Item(kind, key, match, tuple(sentences)[:_MOST_EXCERPTS], self._places[key])
            for (kind, key, match), sentences in self._sentences.items()
        ]

    def _text(self, blob: Any) -> str | None:
        return self.texts.get(bytes(blob)) if blob is not None else None


class BlockSource:
    """Blocks by label, with their versions, and proposals.

    If the owner chooses a block or an old version of it, all its versions change, since the history
    repeats the text.
    """

    def find(
        self, tx: Transaction, owned: Belongings, needle: Needle, after: int
    ) -> tuple[list[Item], int | None]:
        """Return the items of the next chain, and the number of the chain after it.

        Args:
            tx: The transaction.
            owned: The area of the search, with the chains.
            needle: The fact.
            after: The number of the chain in `owned.chains`; 0 at the start.

        Returns:
            The items, and the next position; None at the end.
        """
        if after >= len(owned.chains):
            return [], None
        chain_id = owned.chains[after]
        items = self._of_chain(tx, chain_id, needle, _fixed_labels(owned, chain_id))
        return items, after + 1 if after + 1 < len(owned.chains) else None

    def _of_chain(
        self, tx: Transaction, chain_id: str, needle: Needle, fixed_labels: Set[str]
    ) -> list[Item]:
        parameters = {"chain_id": chain_id}
        ids = [bytes(row.id) for row in tx.all(_TEXTS, parameters)]
        texts = versions.read_texts(tx, chain_id, ids) if ids else {}
        finds = _Finds(chain_id, needle, fixed_labels)
        finds.texts = {id: text for id, text in texts.items() if needle.units(text)}
        for row in tx.all(_BLOCKS, parameters):
            finds.add(
                "block",
                row.label,
                row.value,
                row.title,
                row.description,
                *strings_in(row.metadata, is_free=True),
            )
        for row in tx.all(_VERSIONS, parameters):
            finds.add_version(row)
        for row in tx.all(_LOG, parameters):
            finds.add("version", row.deleted_label or "", *strings_in(row.changed))
        for row in tx.all(_PROPOSALS, parameters):
            finds.add_proposal(row)
        return finds.items()

    def remove(
        self, tx: Transaction, owned: Belongings, forgetting: Forgetting, items: Sequence[Item]
    ) -> None:
        """Rewrite the chains of these items without the fact.

        Args:
            tx: The transaction.
            owned: The area of the removal; other chains are not changed.
            forgetting: The state of the work, which is changed.
            items: Items that `find` returned.
        """
        of_chains: defaultdict[str, list[Item]] = defaultdict(list)
        for item in items:
            of_chains[item.where["chain_id"]].append(item)
        for chain_id in sorted(of_chains.keys() & set(owned.chains)):
            fixed_labels = _fixed_labels(owned, chain_id)
            changes = _changes(chain_id, of_chains[chain_id], forgetting.needle, fixed_labels)
            rewritten = rewriting.rewrite(tx, chain_id, changes)
            if rewritten is None:
                continue
            outcome = forgetting.chains.get(chain_id, {"versions": 0})
            forgetting.chains[chain_id] = {
                "head": rewritten.head.hex() if rewritten.head else None,
                "versions": outcome["versions"] + rewritten.versions,
            }
            forgetting.changed["blocks"] += rewritten.blocks
            forgetting.changed["commits"] += rewritten.versions
            forgetting.changed["proposals"] += rewritten.proposals
            forgetting.removed["proposals"] += len(rewritten.dropped_proposals)


def _fixed_labels(owned: Belongings, chain_id: str) -> frozenset[str]:
    return frozenset(label for chain, label in owned.fixed_blocks if chain == chain_id)


def _changes(
    chain_id: str, items: Sequence[Item], needle: Needle, fixed_labels: Set[str]
) -> TextChanges:
    """Return the changes of a chain's texts for the chosen items."""
    matches = matches_of(items)
    every: Matches = frozenset().union(*matches.values())

    def text(place: Place, value: str) -> str:
        chosen = matches.get(f"{chain_id}/{place.label}", frozenset())
        if place.proposal_id:
            chosen |= matches.get(place.proposal_id, frozenset())
        return remove(value, needle, chosen) if chosen else value

    def proposed(place: Place, base: str, value: str) -> str:
        new_value = text(place, value)
        if new_value == value:
            return value
        return _without_losses(base, value, text(Place(place.label), base), new_value)

    def words(place: Place, value: str) -> str:
        return value if place.label in fixed_labels else blank(value, needle, every)

    def settings(place: Place, value: Any) -> Any:
        if place.label in fixed_labels:
            return value
        return change_strings(value, partial(blank, needle=needle, matches=every))

    return TextChanges(text, words, settings, proposed)


def _without_losses(base: str, value: str, new_base: str, new_value: str) -> str:
    """Return a proposed text without the fact, which deletes only what the proposal deleted.

    A proposal may replace a line by one that says the fact. Without the fact it would only delete
    the line. The author did not propose that, so the line stays.

    Args:
        base: The text from which the proposal was made.
        value: The proposed text.
        new_base: `base` without the fact.
        new_value: `value` without the fact.
    """
    changes = line_changes(base, value)
    new_changes = line_changes(new_base, new_value)
    if not base or changes is None or new_changes is None:
        return new_value
    old_lines = base.split("\n")
    deleted = {
        line
        for change in changes
        if _is_deletion(old_lines[change.start : change.end], change.lines)
        for line in old_lines[change.start : change.end]
    }
    lines = new_base.split("\n")
    has_loss = False
    for change in reversed(new_changes):
        replaced = lines[change.start : change.end]
        if _is_deletion(replaced, change.lines) and not deleted.issuperset(replaced):
            has_loss = True
        else:
            lines[change.start : change.end] = change.lines
    return "\n".join(lines) if has_loss else new_value


def _is_deletion(before: Sequence[str], after: Sequence[str]) -> bool:
    """Return whether the lines after a change are those before without some words."""
    words = iter(" ".join(before).split())
    return bool(before) and all(word in words for word in " ".join(after).split())


def labels_with(tx: Transaction, owned: Belongings, needle: Needle) -> tuple[list[str], list[str]]:
    """Return the names of blocks that mention the fact, and the former ones that do.

    Forgetting changes no names. Former names, also of deleted blocks, stay in the history.

    Args:
        tx: The transaction.
        owned: The area, with the chains whose blocks count.
        needle: The fact.
    """
    statement = select(blocks.c.label).where(blocks.c.chain_id.in_(owned.chains)).distinct()
    labels = {row.label for row in tx.all(statement)}
    of_history = (
        select(commits.c.label)
        .join(chains, chains.c.seq == commits.c.chain)
        .where(chains.c.id.in_(owned.chains))
        .distinct()
    )
    former = {row.label for row in tx.all(of_history)} - labels
    return _saying(labels, needle), _saying(former, needle)


def _saying(labels: Set[str], needle: Needle) -> list[str]:
    return sorted(label for label in labels if _says(label, needle))


def _says(label: str, needle: Needle) -> bool:
    """Return whether the name of a block mentions the fact."""
    return needle.is_in(label) or needle.is_in(_SEPARATORS.sub(" ", label))


def shared_blocks_with(tx: Transaction, owned: Belongings, needle: Needle) -> list[str]:
    """Return a sentence for each block outside the user's reach that mentions the fact.

    A sentence gives no name that says the fact, since a receipt repeats it.

    Args:
        tx: The transaction.
        owned: The area, with the shared and the fixed agents, whose blocks are searched.
        needle: The fact.
    """
    statement = (
        select(blocks.c.id, blocks.c.chain_id, blocks.c.label, blocks.c.value)
        .join(agents_blocks, agents_blocks.c.block_id == blocks.c.id)
        .where(agents_blocks.c.agent_id.in_((*owned.shared_agents, *owned.fixed_agents)))
        .distinct()
    )
    return [
        f"The block {_shown(row, needle)} contains it too, and stays as it is: others share it or set "
        "it up. A key with the scope agents:write can change it."
        for row in tx.all(statement)
        if needle.is_in(row.value)
        and (row.chain_id not in owned.chains or (row.chain_id, row.label) in owned.fixed_blocks)
    ]


def _shown(row: Any, needle: Needle) -> str:
    """Return the name and the id of a block; the id alone if the name mentions the fact."""
    return row.id if _says(row.label, needle) else f'"{row.label}" ({row.id})'
