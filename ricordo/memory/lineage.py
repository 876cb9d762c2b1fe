"""Where memory comes from and goes: the memory behind an answer, what its step changed, and which version brought each line."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ricordo.domain.passage import Passage
from ricordo.domain.scope import Scope
from ricordo.domain.version import BlockVersion, Proposal
from ricordo.errors import NotFound
from ricordo.memory.merge import kept_lines
from ricordo.storage import archives, history, messages, proposals, runs, versions
from ricordo.storage.engine.store import Transaction


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block as a step's prompt held it: its id, the id of the version, and the version itself unless it was erased."""

    block_id: str
    version_id: str
    version: BlockVersion | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """What of memory the step that wrote a message had in its prompt, what it changed, and what it proposed.

    `gone` are ids of passages that were deleted since. A message that no step wrote, as what a user said, had none of it.
    """

    message_id: str
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    blocks: tuple[HeldBlock, ...] = ()
    passages: tuple[Passage, ...] = ()
    gone: tuple[str, ...] = ()
    changed: tuple[BlockVersion, ...] = ()
    proposed: tuple[Proposal, ...] = ()


def of_message(tx: Transaction, scope: Scope, message_id: str) -> Lineage:
    """The lineage of a message. Raises NotFound."""
    message = messages.get(tx, scope, message_id)
    found = Lineage(message.id, message.run_id, message.step_id)
    if message.step_id is None:
        return found
    changed = tuple(history.of_step(tx, scope, message.run_id or "", message.step_id))
    found = replace(found, changed=changed, proposed=tuple(proposals.of_step(tx, scope, message.step_id)))
    try:
        step = runs.get_step(tx, scope, message.step_id)
    except NotFound:  # the step is saved with its end, and this message came before its tools
        return found
    held: dict[str, str] = step.memory.get("blocks", {})
    known = history.of_blocks(tx, scope, held)
    named: list[str] = step.memory.get("passages", [])
    passages = tuple(one for one in archives.passages_by_ids(tx, named) if one.organization_id == scope.organization_id)
    there = {one.id for one in passages}
    return replace(
        found,
        is_untrusted=step.is_untrusted,
        blocks=tuple(HeldBlock(block_id, version, known.get(block_id)) for block_id, version in held.items()),
        passages=passages,
        gone=tuple(id for id in named if id not in there),
    )


@dataclass(frozen=True, slots=True)
class BlamedLine:
    """A line of a text, its number from 1, and the version that brought it.

    With `or_earlier` that is the oldest version that was looked at, and an earlier one may have brought it.
    """

    number: int
    text: str
    version: BlockVersion
    or_earlier: bool = False


_PAGE = 200
# Blame goes so far back: ten thousand versions of 2 kB, and fewer of a longer text. That takes about a second.
_MOST_READ = 20_000_000  # characters


def blame(tx: Transaction, chain_id: str, label: str, at: str | None = None) -> list[BlamedLine]:
    """Each line of the block's text, now or at a version, with the version that brought it. Raises NotFound, Conflict."""
    older = _backwards(tx, chain_id, label, at)
    newest, text = next(older, (None, None))
    if newest is None or text is None:
        raise NotFound(f'There is no memory block "{label}"' + (f" at version {at[:12]}." if at else "."))
    lines = text.split("\n")
    brought = [newest] * len(lines)
    # By its number in the text before: which line of the last text it still is.
    open_lines = dict(enumerate(range(len(lines))))
    seen, since, read = lines, newest, 0
    for version, before in older:
        read += len(before or "")
        if read > _MOST_READ:
            break
        before_lines = [] if before is None else before.split("\n")
        kept = {line: earlier for earlier, line in kept_lines(before_lines, seen)[0].items()}
        for number in open_lines.keys() - kept.keys():
            brought[open_lines[number]] = since
        open_lines = {kept[number]: line for number, line in open_lines.items() if number in kept}
        if not open_lines:
            break
        seen, since = before_lines, version
    for line in open_lines.values():
        brought[line] = since
    unsure = set(open_lines.values()) if read > _MOST_READ else set()
    return [
        BlamedLine(number + 1, line, brought[number], or_earlier=number in unsure) for number, line in enumerate(lines)
    ]


def _backwards(tx: Transaction, chain_id: str, label: str, at: str | None) -> Iterator[tuple[BlockVersion, str | None]]:
    """The block's versions with their texts, from the newest, or the one at `at`, to the oldest."""
    before = None
    if at is not None:
        there = history.block_at(tx, chain_id, label, history.get(tx, chain_id, at))
        if there is None:
            return
        before = there.number + 1
        label = there.label if not history.page(tx, chain_id, label=label, limit=1, before=before) else label
    while found := history.page(tx, chain_id, label=label, limit=_PAGE, before=before):
        texts = versions.read_texts(tx, chain_id, [version.blob for version in found if version.blob])
        for version in found:
            yield version, texts[version.blob] if version.blob else None
        before = found[-1].number
