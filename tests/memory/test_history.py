"""The history of a block's text.

After any sequence of changes, the history, its blame and its diffs equal those of a plain model.
The ids equal those that git computes.
"""

import itertools
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ricordo.domain.authors import signature
from ricordo.domain.block import Block
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import BlockVersion
from ricordo.errors import Conflict, NotFound
from ricordo.memory import approval, user_memory
from ricordo.memory.approval import Approved, Conflicted
from ricordo.memory.blame import blame
from ricordo.memory.declined import Declined
from ricordo.memory.proposals import Unchanged
from ricordo.memory.text import merge_changes, same_text
from ricordo.memory.user_memory import PutOptions, UserMemory
from ricordo.storage import history, proposals, versions
from ricordo.storage.engine.sqlite import SqliteStore
from ricordo.storage.engine.store import Transaction
from tests.memory.steps import ADA
from tests.seams.stores import ManualClock

AGENTS = tuple(Actor("agent", f"agent-{name}", name.title()) for name in ("tutor", "coach"))
LABELS = ("human", "goals", "courses/maths", "courses-old", "courses")
LINES = ("", "tea", "rum", "Übt täglich 🍵", "maths", "x" * 80)

texts = st.lists(st.sampled_from(LINES), max_size=6).map("\n".join)
labels = st.sampled_from(LABELS)
steps = st.one_of(
    st.tuples(st.just("put"), labels, texts),
    st.tuples(st.just("delete"), labels),
    st.tuples(st.just("rename"), labels, labels),
    st.tuples(st.just("restore"), labels, st.integers(0, 30)),
    st.tuples(st.just("propose"), labels, texts, st.integers(0, 1)),
    st.tuples(st.just("approve"), st.integers(0, 9)),
    st.tuples(st.just("settle"), st.integers(0, 9), texts),
    st.tuples(st.just("reject"), st.integers(0, 9)),
)


@dataclass
class Waiting:
    """A proposal in the model."""

    id: str
    author: int
    label: str
    base: str | None
    text: str


@dataclass
class Model:
    """A plain model of memory.

    It holds the tree after each version, and the proposals that wait. It also holds the proposals
    that would wait again if their block were restored, and the authors and labels of rejected ones.
    """

    tree: dict[str, str] = field(default_factory=dict)
    trees: list[dict[str, str]] = field(default_factory=list)
    authors: list[Actor] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    expired: list[Waiting] = field(default_factory=list)
    rejected: set[tuple[int, str]] = field(default_factory=set)

    def change(self, tree: dict[str, str], author: Actor = ADA) -> None:
        if tree != self.tree:
            self.tree = tree
            self.trees.append(dict(tree))
            self.authors.append(author)


class Both:
    """One owner's memory in the store, and the model of it.

    `do` makes one change to both and compares the outcomes.
    """

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.model = Model()
        self.owned: UserMemory = user_memory.open_memory(tx, Scope(), new_id("owner"), makes=True)

    def do(self, name: str, *arguments: Any) -> None:
        getattr(self, name)(*arguments)

    def put(self, label: str, text: str) -> None:
        user_memory.put(self.tx, self.owned, label, text, ADA)
        self.model.change({**self.model.tree, label: self.stored(label, text)})

    def delete(self, label: str) -> None:
        if label not in self.model.tree:
            with pytest.raises(NotFound):
                user_memory.delete(self.tx, self.owned, label, ADA)
            return
        user_memory.delete(self.tx, self.owned, label, ADA)
        self.model.change(
            {other: text for other, text in self.model.tree.items() if other != label}
        )
        self.model.expired += [one for one in self.model.waiting if one.label == label]
        self.model.waiting = [one for one in self.model.waiting if one.label != label]

    def stored(self, label: str, text: str) -> str:
        """Return the text as it is stored.

        If only the final newline differs, the older text stays.
        """
        (value,) = (
            block.value for block in user_memory.listed(self.tx, self.owned) if block.label == label
        )
        assert value == text or same_text(value, text)
        return value

    def come_back(self, label: str) -> None:
        self.model.waiting += [one for one in self.model.expired if one.label == label]
        self.model.expired = [one for one in self.model.expired if one.label != label]

    def rename(self, label: str, new_label: str) -> None:
        tree = self.model.tree
        if label not in tree or (new_label in tree and new_label != label):
            with pytest.raises((NotFound, Conflict)):
                user_memory.rename(self.tx, self.owned, label, new_label, ADA)
            return
        user_memory.rename(self.tx, self.owned, label, new_label, ADA)
        self.model.change(
            {new_label if other == label else other: text for other, text in tree.items()}
        )
        for waiting in self.model.waiting:
            waiting.label = new_label if waiting.label == label else waiting.label

    def restore(self, label: str, number: int) -> None:
        if not self.model.trees:
            return
        number %= len(self.model.trees)
        (version,) = history.page(self.tx, self.owned.chain.id, limit=1, before=number + 2)
        text = history.text_at(self.tx, self.owned.chain.id, label, version)
        if text is None:
            with pytest.raises(NotFound):
                user_memory.restore(self.tx, self.owned, label, version.id.hex(), ADA)
            return
        if label not in self.model.tree:
            self.come_back(label)
        user_memory.restore(self.tx, self.owned, label, version.id.hex(), ADA)
        self.model.change({**self.model.tree, label: text})

    def propose(self, label: str, text: str, author: int) -> None:
        base = self.model.tree.get(label)
        if base == text or (base is None) != (not base) or not text:
            return
        if base is not None and same_text(base, text):
            with pytest.raises(Unchanged):
                user_memory.propose_edit(self.tx, self.owned, label, base, text, AGENTS[author])
            return
        try:
            one = user_memory.propose_edit(
                self.tx, self.owned, label, base or "", text, AGENTS[author]
            )
        except Declined:
            # test_proposals.py tests which changes a rejection declines.
            assert (author, label) in self.model.rejected
            return
        # test_proposals.py tests which older proposals it supersedes.
        left = {waiting.id for waiting in proposals.waiting(self.tx, self.owned.chain.id)}
        gone = [waiting for waiting in self.model.waiting if waiting.id not in left]
        assert all((waiting.author, waiting.label) == (author, label) for waiting in gone)
        self.model.waiting = [waiting for waiting in self.model.waiting if waiting.id in left]
        if not one.is_repeated:
            self.model.waiting.append(Waiting(one.id, author, label, base, text))

    def approve(self, number: int) -> None:
        if not self.model.waiting:
            return
        one = self.model.waiting[number % len(self.model.waiting)]
        now = self.model.tree.get(one.label)
        made = one.text if one.base is None else None
        expected = made if now is None else merge_changes(one.base or "", now, one.text)
        done = approval.approve(self.tx, Scope(), one.id, ADA)
        if expected is None and one.base is not None and isinstance(done, Approved):
            # The change is merged through the versions since then. The merge may succeed, since the
            # texts consist of few different lines.
            expected = done.block.value
        if expected is None:
            assert isinstance(done, Conflicted)
            assert (done.base, done.ours, done.theirs) == (one.base, now, one.text)
            return
        assert isinstance(done, Approved)
        assert done.block.value == expected
        self.model.waiting.remove(one)
        if now is None:
            self.come_back(one.label)
        self.model.change({**self.model.tree, one.label: expected}, AGENTS[one.author])

    def settle(self, number: int, text: str) -> None:
        if not self.model.waiting:
            return
        one = self.model.waiting[number % len(self.model.waiting)]
        before = len(self.model.trees)
        done = approval.approve(self.tx, Scope(), one.id, ADA, body=text)
        assert isinstance(done, Approved)
        self.model.waiting.remove(one)
        if one.label not in self.model.tree:
            self.come_back(one.label)
        self.model.change({**self.model.tree, one.label: self.stored(one.label, text)})
        if len(self.model.trees) > before:
            # If her text equals the merged text of the agent, the agent is the author.
            self.model.authors[-1] = self.versions()[-1].author

    def reject(self, number: int) -> None:
        if self.model.waiting:
            one = self.model.waiting.pop(number % len(self.model.waiting))
            assert approval.reject(self.tx, Scope(), one.id, ADA).status == "rejected"
            self.model.rejected.add((one.author, one.label))

    def versions(self) -> list[BlockVersion]:
        return history.page(self.tx, self.owned.chain.id, limit=100_000)[::-1]

    def check(self) -> None:
        """Raise if the store and the model differ in texts, versions or proposals."""
        tx, chain_id, model = self.tx, self.owned.chain.id, self.model
        listed = user_memory.listed(tx, self.owned)
        assert {block.label: block.value for block in listed} == model.tree
        found = self.versions()
        assert [version.author for version in found] == model.authors
        assert [version.number for version in found] == list(range(1, len(found) + 1))
        tree: dict[str, str] = {}
        for version, expected in zip(found, model.trees, strict=True):
            # The tree is rebuilt from the rows alone.
            tree.pop(version.old_label or version.label, None)
            if version.blob is not None:
                tree[version.label] = versions.read_text(tx, chain_id, version.blob)
            assert tree == expected
        waiting = [
            (one.id, one.label, one.base_value, one.value)
            for one in proposals.waiting(tx, chain_id)
        ]
        assert sorted(waiting) == sorted(
            (one.id, one.label, one.base, one.text) for one in model.waiting
        )
        for block in listed:
            self._check_block(block)
        for label in {version.old_label for version in found if version.old_label} - tree.keys():
            self._check_former_label(label, found)

    def _check_block(self, block: Block) -> None:
        chain_id = self.owned.chain.id
        pages: list[BlockVersion] = []
        while found := history.page(
            self.tx,
            chain_id,
            label=block.label,
            limit=2,
            before=pages[-1].number if pages else None,
        ):
            pages += found
        assert pages == history.page(self.tx, chain_id, label=block.label, limit=1000)
        assert pages[0].id == block.head
        for newer, older in itertools.pairwise(pages):
            assert older.label == (newer.old_label or newer.label)
            assert history.before(self.tx, newer) == older
            assert history.label_now(self.tx, older) == block.label
            text = self.model.trees[older.number - 1].get(older.label)
            assert history.text_at(self.tx, chain_id, block.label, older) == text
        blamed = blame(self.tx, chain_id, block.label)
        assert [line.text for line in blamed] == block.value.split("\n")
        brought = {version.number: version for version in pages}
        for line in blamed:
            assert line.version == brought[line.version.number]
            assert line.text in self.model.trees[line.version.number - 1][line.version.label].split(
                "\n"
            )

    def _check_former_label(self, label: str, found: Sequence[BlockVersion]) -> None:
        """Raise unless a label without a block leads to the versions of its last block."""
        tx, chain_id = self.tx, self.owned.chain.id
        last = [one for one in found if label in (one.label, one.old_label)][-1]
        expected = [last]
        name = last.label
        for version in found[last.number :]:
            if version.old_label == name or (version.label == name and not version.old_label):
                expected.append(version)
                name = version.label
            elif version.label == name:
                break
        if last.label == label:
            expected = [last]  # deleted under this label
        while earlier := history.before(tx, expected[0]):
            expected.insert(0, earlier)
        assert history.page(tx, chain_id, label=label, limit=1000) == expected[::-1]
        assert history.count(tx, chain_id, label) == len(expected)
        assert history.last_label(tx, chain_id, label) == expected[-1].label
        half = expected[len(expected) // 2]
        older = history.page(tx, chain_id, label=label, limit=1000, before=half.number)
        assert older == expected[: len(expected) // 2][::-1]


@given(st.lists(steps, max_size=40))
async def test_any_sequence_of_changes_matches_a_plain_model(
    store: SqliteStore, sequence: Sequence[tuple[Any, ...]]
) -> None:
    def work(tx: Transaction) -> None:
        both = Both(tx)
        for name, *arguments in sequence:
            both.do(name, *arguments)
        both.check()

    await store.write(work)


async def test_the_ids_of_a_random_history_are_gits_ids(
    store: SqliteStore, clock: ManualClock, tmp_path: Path
) -> None:
    await compare_with_git(store, clock, tmp_path, changes=60, seed=7)


async def compare_with_git(
    store: SqliteStore, clock: ManualClock, folder: Path, *, changes: int, seed: int
) -> None:
    """Make random changes to a memory, give the model's trees to git, and compare every id.

    Then git checks its repository. In the long form `changes` is 10,000, which takes minutes.
    """
    chance = random.Random(seed)  # noqa: S311 - repeatable
    both: list[Both] = []

    def one(tx: Transaction) -> None:
        if not both:
            both.append(Both(tx))
        both[0].tx = tx
        name = chance.choices(
            ("put", "delete", "rename", "restore", "propose", "approve"), (12, 2, 2, 2, 4, 4)
        )[0]
        label = chance.choice(LABELS)
        text = "\n".join(chance.choices(LINES, k=chance.randrange(8)))
        arguments: dict[str, tuple[Any, ...]] = {
            "put": (label, text),
            "delete": (label,),
            "rename": (label, chance.choice(LABELS)),
            "restore": (label, chance.randrange(10**6)),
            "propose": (label, text, chance.randrange(2)),
            "approve": (chance.randrange(9),),
        }
        both[0].do(name, *arguments[name])

    while not both or len(both[0].model.trees) < changes:
        clock.advance(chance.randrange(3))
        await store.write(one)
    model = both[0].model

    def read(tx: Transaction) -> list[BlockVersion]:
        both[0].tx = tx
        return both[0].versions()

    versions = await store.read(read)
    ids = import_into_git(folder, model.trees, versions)
    assert [version.id.hex() for version in versions] == ids
    for older, newer in itertools.pairwise(versions):
        assert newer.parents == (older.id,)


def import_into_git(
    folder: Path, trees: Sequence[dict[str, str]], versions: Sequence[BlockVersion]
) -> list[str]:
    """Return the commit ids that stock git computes for these trees and their versions."""
    git = ["git", "-C", str(folder / "memory.git")]
    subprocess.run(["git", "init", "-q", "--bare", str(folder / "memory.git")], check=True)
    stream = bytearray()
    before: dict[str, str] = {}
    for number, (tree, version) in enumerate(zip(trees, versions, strict=True), 1):
        who = f"{signature(version.author)} {version.created_at // 1_000_000} +0000"
        reason = version.reason.encode()
        stream += (
            f"commit refs/heads/main\nmark :{number}\nauthor {who}\ncommitter {who}\n".encode()
        )
        stream += b"data %d\n%b\n" % (len(reason), reason)
        for label in before.keys() - tree.keys():
            stream += f"D {label}.md\n".encode()
        for label, text in tree.items():
            if before.get(label) != text:
                stream += (
                    f"M 100644 inline {label}.md\ndata {len(text.encode())}\n".encode()
                    + text.encode()
                    + b"\n"
                )
        before = tree
    marks = folder / "marks"
    subprocess.run(
        [*git, "fast-import", "--quiet", f"--export-marks={marks}"], input=bytes(stream), check=True
    )
    subprocess.run([*git, "fsck", "--strict", "--no-progress"], check=True, capture_output=True)
    by_mark = dict(line.split() for line in marks.read_text().splitlines())
    return [by_mark[f":{number}"] for number in range(1, len(trees) + 1)]


async def memory_with_versions(
    store: SqliteStore, *values: str, label: str = "human"
) -> UserMemory:
    """Make a memory whose block had these texts, one after the other."""

    def work(tx: Transaction) -> UserMemory:
        owned = user_memory.open_memory(tx, Scope(), "ada", makes=True)
        for number, text in enumerate(values, 1):
            user_memory.put(tx, owned, label, text, ADA, PutOptions(message=f"{label} {number}"))
        return owned

    return await store.write(work)


async def test_blame_names_the_version_that_brought_each_line(store: SqliteStore) -> None:
    owned = await memory_with_versions(
        store, "a\nb\nc", "a\nB\nc", "new\na\nB\nc", "new\na\nB\nc\n"
    )

    def work(tx: Transaction, at: str | None = None) -> list[tuple[int, str, str]]:
        return [
            (line.number, line.text, line.version.reason)
            for line in blame(tx, owned.chain.id, "human", at)
        ]

    assert await store.read(work) == [
        (1, "new", "human 3"),
        (2, "a", "human 1"),
        (3, "B", "human 2"),
        (4, "c", "human 1"),
        (5, "", "human 4"),
    ]
    second = (await store.read(lambda tx: history.page(tx, owned.chain.id, before=3)))[0]
    at = await store.read(lambda tx: work(tx, second.id.hex()))
    assert at == [(1, "a", "human 1"), (2, "B", "human 2"), (3, "c", "human 1")]


async def test_blame_follows_a_new_label_and_an_unknown_label_is_not_found(
    store: SqliteStore,
) -> None:
    owned = await memory_with_versions(store, "a\nb")
    first = (await store.read(lambda tx: history.page(tx, owned.chain.id)))[0]
    await store.write(lambda tx: user_memory.rename(tx, owned, "human", "profile", ADA))
    await memory_with_versions(store, "a\nB", label="profile")
    found = await store.read(lambda tx: blame(tx, owned.chain.id, "profile"))
    assert [line.version.reason for line in found] == ["human 1", "profile 1"]
    early = await store.read(lambda tx: blame(tx, owned.chain.id, "profile", first.id.hex()))
    assert [line.text for line in early] == ["a", "b"]
    assert await store.read(lambda tx: blame(tx, owned.chain.id, "human")) == found
    newest = found[-1].version.id.hex()
    assert await store.read(lambda tx: blame(tx, owned.chain.id, "human", newest)) == found
    for label, at in (("gone", None), ("late", first.id.hex())):
        with pytest.raises(NotFound, match=f'no memory block "{label}"'):
            await store.read(lambda tx, label=label, at=at: blame(tx, owned.chain.id, label, at))  # type: ignore[misc]
    await memory_with_versions(store, "x", label="late")
    await store.write(lambda tx: user_memory.delete(tx, owned, "late", ADA))
    with pytest.raises(NotFound):
        await store.read(lambda tx: blame(tx, owned.chain.id, "late"))


async def test_blame_reads_a_long_history_in_portions(store: SqliteStore) -> None:
    lines = [f"line {number}" for number in range(10)]
    values = []
    for number in range(225):
        lines[number % 9] = f"line {number % 9}, edit {number}"
        values.append("\n".join(lines))
    owned = await memory_with_versions(store, *values)
    found = await store.read(lambda tx: blame(tx, owned.chain.id, "human"))
    assert [line.version.reason for line in found] == [
        *(f"human {number}" for number in range(217, 226)),
        "human 1",
    ]


async def test_blame_stops_at_its_work_limit_and_marks_older_lines(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = await memory_with_versions(store, "a\nb", "a\nB", "a\nB\nc", "a\nB\nC")
    monkeypatch.setattr("ricordo.memory.blame._WORK_LIMIT", 6)
    found = await store.read(lambda tx: blame(tx, owned.chain.id, "human"))
    assert [(line.version.reason, line.or_earlier) for line in found] == [
        ("human 3", True),
        ("human 3", True),
        ("human 4", False),
    ]
