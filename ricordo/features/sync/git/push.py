"""Parse a push: its new commits, the blocks that they change, and its faults.

The code has no side effects; `find` returns stored objects. All faults are reported at once, each
with its file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ricordo.domain.authors import signature
from ricordo.domain.block import DEFAULT_LIMIT, require_label
from ricordo.domain.git_objects import SUFFIX, GitObject, commit_body, fits_git, path_of, tree_of
from ricordo.domain.redaction import redact
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict, Invalid, Stale
from ricordo.features.sync.git import objects
from ricordo.features.sync.git.adoption import Adoption, MainCommit
from ricordo.memory.text import merge_lines
from ricordo.storage.versions import Change

MOST_COMMITS = 500
MOST_CHANGES = 2_000
_MOST_FAULTS = 20
# The most files and folders of a commit. Even a small push can name one folder many times.
MOST_FILES = 10_000
_MOST_ENTRIES = 500_000  # the most entries that are read in all trees of a push
_DEEPEST = 255  # characters of a path; the limit of a label
MERGE_MESSAGE = "Merge commits from the remote"
_TOO_MANY = (
    f"This push holds more than {MOST_COMMITS} commits. Push older ones first: "
    "git push origin <commit>:main"
)
_TOO_WIDE = (
    f"A commit of this push holds more than {MOST_FILES} files and folders. Push fewer files."
)
_TOO_LARGE = (
    "The trees of this push hold too many files. Push fewer commits, or fewer files, at once."
)
_NOT_FORWARD = (
    "The memory has commits that your branch lacks. Fetch and merge first; a forced push is "
    "refused."
)
_ODD_FILES = {
    b"100755": "an executable file. Remove the executable bit with `git update-index --chmod=-x`",
    b"120000": "a link. Commit the text itself",
    b"160000": "a submodule. Commit its texts, or remove it",
}


class Refused(Invalid):
    """A push that is refused, with a sentence for each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults[:_MOST_FAULTS])
        if len(faults) > _MOST_FAULTS:
            self.faults += (f"{len(faults) - _MOST_FAULTS} more.",)
        super().__init__(" ".join(self.faults))


@dataclass(slots=True)
class EntryBudget:
    """The number of tree entries that may be read for one push."""

    remaining: int = _MOST_ENTRIES

    def take(self) -> None:
        """Count one entry. Raises Refused if none remains."""
        self.remaining -= 1
        if self.remaining < 0:
            raise Refused([_TOO_LARGE])


@dataclass(slots=True)
class Push:
    """The objects of a push together with the stored objects.

    `limits` are the limits of blocks by label, in characters.
    """

    new: Mapping[bytes, GitObject]
    find: objects.Find
    limits: Mapping[str, int] = field(default_factory=dict)
    budget: EntryBudget = field(default_factory=EntryBudget)
    _files: dict[bytes, dict[str, bytes]] = field(default_factory=dict)
    _texts: dict[bytes, str] = field(default_factory=dict)
    _commits: dict[bytes, objects.Commit] = field(default_factory=dict)
    _checked: set[tuple[bytes, str]] = field(default_factory=set)
    _faults: dict[str, None] = field(default_factory=dict)
    _sizes: dict[bytes, int] = field(default_factory=dict)
    _labels: dict[str, str | None] = field(default_factory=dict)

    def adoption(self, tip: bytes | None, new_tip: bytes) -> Adoption:
        """Return the changes that move a chain from `tip` to `new_tip`.

        Args:
            tip: The id of the chain's last commit; None for a chain without versions.
            new_tip: The id of the pushed commit.

        Raises:
            Stale: if `new_tip` does not follow `tip`.
            Refused: if the push has faults.
            Lacking: if an object is missing.
            Invalid: if a commit or tree is malformed.
        """
        order = self.new_commits(new_tip)
        main = _main_line(order, tip, new_tip)
        before = self.files_of(tip) if tip else {}
        commits = []
        for commit in main:
            files = self.files_of(commit.id)
            commits.append(MainCommit(commit, tuple(self._changes(before, files))))
            before = files
        merged = [commit for commit in order if commit not in main]
        merged_files = [file for commit in merged for file in self.files_of(commit.id).items()]
        texts = {blob: self.text_of(blob, label) for label, blob in merged_files}
        if sum(len(changes) for _, changes in commits) > MOST_CHANGES:
            self._fault(
                f"This push changes more than {MOST_CHANGES} texts. Push older commits first."
            )
        self.require_faultless(order)
        return Adoption(
            tip, tuple(commits), self._commits_with_trees(merged), tuple(texts.values())
        )

    def changes(self, before: bytes, after: bytes) -> list[Change]:
        return list(self._changes(self.files_of(before), self.files_of(after)))

    def files_of(self, commit: bytes) -> dict[str, bytes]:
        """Return the ids of a commit's texts by block label.

        A file that cannot be a block is recorded as a fault.

        Args:
            commit: The id of a pushed or stored commit.

        Raises:
            Refused: if the commit has too many files.
            Lacking: if an object is missing.
        """
        tree = self._commit(commit).tree
        if tree not in self._files:
            self._size(tree)
            faults_before = len(self._faults)
            files = dict(self._walk(tree, ""))
            if len(self._faults) == faults_before and tree_of(files).id != tree:
                self._fault(
                    "A tree of this push is malformed. Check the repository with "
                    "`git fsck --strict`."
                )
            self._files[tree] = files
        return self._files[tree]

    def text_of(self, blob: bytes, label: str) -> str:
        """Return a text for the block with this label.

        Content that a block cannot have is recorded as a fault, with its line.

        Args:
            blob: The id of the text.
            label: The block's label, which determines its limit.
        """
        if blob not in self._texts:
            body = self._object(blob, "blob").body
            try:
                self._texts[blob] = body.decode()
            except UnicodeDecodeError as error:
                line = body[: error.start].count(b"\n") + 1
                self._fault(
                    f"{path_of(label)}, line {line}: this is not UTF-8. Memory holds text only."
                )
                self._texts[blob] = ""
        text = self._texts[blob]
        if blob in self.new and (blob, label) not in self._checked:
            self._checked.add((blob, label))
            self._check_text(text, label)
        return text

    def new_commits(self, tip: bytes) -> list[objects.Commit]:
        """Return the new commits up to this commit, parents first.

        The list is empty if the commit is already stored.

        Args:
            tip: The commit's id.

        Raises:
            Refused: if there are too many.
            Lacking: if an object is missing.
        """
        order: list[objects.Commit] = []
        visited: set[bytes] = set()
        new = 0
        waiting = [(tip, False)]
        while waiting:
            id, is_done = waiting.pop()
            if is_done:
                order.append(self._commit(id))
            elif id not in visited:
                visited.add(id)
                if self.find(id) is not None:
                    continue
                new += 1
                if new > MOST_COMMITS:
                    raise Refused([_TOO_MANY])
                waiting.append((id, True))
                waiting += [
                    (parent, False) for parent in self._commit(id).parents if parent not in visited
                ]
        return order

    def _commit(self, id: bytes) -> objects.Commit:
        if id not in self._commits:
            self._commits[id] = objects.read_commit(self._object(id, "commit").body)
        return self._commits[id]

    def _object(self, id: bytes, kind: str) -> GitObject:
        git_object = self.new.get(id) or self.find(id)
        if git_object is None and id == objects.EMPTY_TREE.id:
            git_object = objects.EMPTY_TREE
        if git_object is None or git_object.kind != kind:
            raise objects.Lacking(
                f"The push lacks the {kind} {id.hex()[:10]}. Fetch first; a shallow clone may need "
                "--unshallow."
            )
        return git_object

    def _size(self, tree: bytes, depth: int = 0) -> int:
        """Return the number of files and folders in a tree. Raises Refused if there are too many.

        Each tree is read once, even if several commits name it.
        """
        if tree not in self._sizes:
            size = 0
            for entry in objects.read_tree(self._object(tree, "tree").body):
                size += 1
                # In a deeper folder, the path is too long.
                if entry.mode == objects.FOLDER and depth < _DEEPEST:
                    size += self._size(entry.id, depth + 1)
                if size > MOST_FILES:
                    raise Refused([_TOO_WIDE])
            self._sizes[tree] = size
        return self._sizes[tree]

    def _walk(self, tree: bytes, folder: str) -> Iterator[tuple[str, bytes]]:
        names: set[bytes] = set()
        for entry in objects.read_tree(self._object(tree, "tree").body):
            self.budget.take()
            path = folder + entry.name.decode(errors="replace")
            if fault := self._fault_of_entry(entry, path, names):
                self._fault(fault)
            elif entry.mode == objects.FOLDER:
                yield from self._walk(entry.id, f"{path}/")
            else:
                yield path.removesuffix(SUFFIX), entry.id
            names.add(entry.name)

    def _fault_of_entry(self, entry: objects.TreeEntry, path: str, names: set[bytes]) -> str | None:
        """If an entry cannot be a block or folder, return the reason.

        `names` are the names of earlier entries in the tree.
        """
        try:
            entry.name.decode()
        except UnicodeDecodeError:
            return f"{path}: a file's name must be UTF-8."
        if entry.name in names or b"/" in entry.name:
            return (
                f"{path}: a tree holds this name twice, or the name has a slash. Check with `git "
                "fsck --strict`."
            )
        if len(path) > _DEEPEST + len(SUFFIX):
            return f"{path[:80]}…: a label has {_DEEPEST} characters at most."
        if entry.mode == objects.FOLDER:
            return None
        if entry.mode != objects.FILE:
            kind = _ODD_FILES.get(
                entry.mode, f"an entry with the mode {entry.mode.decode(errors='replace')}"
            )
            return f"{path}: only plain files can be memory (mode 100644); this is {kind}."
        if not path.endswith(SUFFIX):
            return (
                f"{path}: each file is a memory block, called <label>{SUFFIX}. Remove or rename it."
            )
        label = path.removesuffix(SUFFIX)
        if label not in self._labels:
            self._labels[label] = self._fault_of_label(label, path)
        return self._labels[label]

    def _fault_of_label(self, label: str, path: str) -> str | None:
        if label in self.limits:
            return None  # a label that a block already has stays allowed if the rules change
        if not fits_git(label):
            return (
                f'{path}: "{label}" is reserved by git, or has a folder that ends in {SUFFIX}. '
                "Choose another label."
            )
        try:
            require_label(label)
        except Invalid as error:
            return f"{path}: {error}"
        return None

    def _changes(self, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Change]:
        old = {label: blob for label, blob in before.items() if label not in after}
        new = {label: blob for label, blob in after.items() if label not in before}
        by_blob = {blob: label for label, blob in old.items()}
        # If a text moves to another file name, the block gets a new label.
        renamed = {label: by_blob.pop(blob) for label, blob in new.items() if blob in by_blob}
        for label in sorted(old.keys() - set(renamed.values())):
            yield Change(label, None, before=None)
        for label in sorted(renamed):
            text = self.text_of(new[label], label)
            yield Change(label, text, before=text, old_label=renamed[label])
        for label in sorted(new.keys() - renamed.keys()):
            yield Change(label, self.text_of(new[label], label), before=None)
        for label in sorted(before.keys() & after.keys()):
            if before[label] != after[label]:
                old_text = self.text_of(before[label], label)
                yield Change(label, self.text_of(after[label], label), before=old_text)

    def _check_text(self, text: str, label: str) -> None:
        path = path_of(label)
        if (nul := text.find("\0")) >= 0:
            self._fault(
                f"{path}, line {_line(text, nul)}: memory cannot hold NUL characters. Leave them "
                "out."
            )
        limit = self.limits.get(label, DEFAULT_LIMIT)
        if len(text) > limit:
            self._fault(
                f"{path}: {len(text)} characters, but the block's limit is {limit}. Shorten the "
                "text or raise the limit."
            )
            return
        if (clean := redact(text, is_strict=True).text) != text:
            pairs = enumerate(zip(text, clean, strict=False))
            offset = next((index for index, (old, new) in pairs if old != new), 0)
            self._fault(
                f"{path}, line {_line(text, offset)}: this looks like a password or key, which "
                "memory does not keep. Remove it from the commit."
            )

    def _commits_with_trees(self, commits: Iterable[objects.Commit]) -> tuple[GitObject, ...]:
        objects_by_id: dict[bytes, GitObject] = {}
        for commit in commits:
            objects_by_id[commit.id] = GitObject("commit", commit.id, commit.body)
            waiting = [commit.tree]
            while waiting:
                tree = self._object(waiting.pop(), "tree")
                objects_by_id[tree.id] = tree
                folders = (
                    entry.id
                    for entry in objects.read_tree(tree.body)
                    if entry.mode == objects.FOLDER
                )
                waiting += [id for id in folders if id not in objects_by_id]
        return tuple(objects_by_id.values())

    def _fault(self, sentence: str) -> None:
        self._faults[sentence] = None

    def require_faultless(self, commits: Iterable[objects.Commit]) -> None:
        """Raise Refused if faults were recorded, or if these commits contain secrets."""
        for commit in commits:
            headers = commit.body.partition(b"\n\n")[0].decode(errors="replace").split("\n")
            people = (line for line in headers if line.startswith(("author ", "committer ")))
            for part, text in (("message", commit.message), ("author", "\n".join(people))):
                if redact(text, is_strict=True).kinds:
                    short = commit.id.hex()[:10]
                    self._fault(
                        f"The {part} of commit {short} holds what looks like a password or key. "
                        "Amend it."
                    )
        if self._faults:
            raise Refused(list(self._faults))


def _main_line(
    order: Sequence[objects.Commit], tip: bytes | None, new_tip: bytes
) -> list[objects.Commit]:
    """Return the commits from the old tip to the new tip.

    The line follows first parents if possible. Raises Stale if the new tip does not follow the old
    one.
    """
    commits = {commit.id: commit for commit in order}
    reaching = {tip} if tip is not None else {None, *commits}
    for commit in order:  # parents come first
        if any(parent in reaching for parent in commit.parents):
            reaching.add(commit.id)
    if new_tip not in commits or new_tip not in reaching:
        raise Stale(_NOT_FORWARD)
    line: list[objects.Commit] = []
    commit_id: bytes | None = new_tip
    while commit_id in commits:
        line.append(commits[commit_id])
        commit_id = next(
            (parent for parent in commits[commit_id].parents if parent in reaching), None
        )
    return line[::-1]


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def known_parents(push: Push, remote_tip: bytes) -> list[bytes]:
    """Return the stored parents of the new commits.

    The new commits branch off from them.

    Args:
        push: The objects of the push.
        remote_tip: The id of the remote's commit.
    """
    order = push.new_commits(remote_tip)
    new = {commit.id for commit in order}
    return list(
        dict.fromkeys(parent for commit in order for parent in commit.parents if parent not in new)
    )


def _kind_of_conflict(common: bytes | None, ours: bytes | None, others: bytes | None) -> str:
    """Return the sentence about a conflict, with a place for the files.

    Git shows a renamed block as a deleted and a new file.
    """
    if ours is None:
        return (
            "The memory deleted or renamed {}, and its remote changed the text: keep the file or "
            "delete it in the merge."
        )
    if others is None:
        return (
            "The remote deleted or renamed {}, and the memory changed the text: keep the file or "
            "delete it in the merge."
        )
    if common is None:
        return "The memory and its remote both created {} with different texts."
    return "The memory and its remote both changed the same lines of {}."


def merged(
    push: Push, base: bytes | None, tip: bytes, remote_tip: bytes, author: Actor, now: int
) -> Adoption:
    """Return the adoption that merges `remote_tip` into `tip`.

    Args:
        push: The objects of both sides. Faults are recorded in it; its objects do not change.
        base: The newest commit that both contain; None if there is none.
        tip: The id of the memory's last commit.
        remote_tip: The id of the remote's commit.
        author: The author of the merge commit.
        now: The time of the merge commit in microseconds.

    Raises:
        Conflict: if both changed the same lines, added different texts under one label, or one
            side deleted a block that the other changed. The text names the blocks.
        Refused: if the remote's commits have faults.
        Lacking: if an object is missing.
        Invalid: if a commit or tree is malformed.
    """
    sides = [push.files_of(commit) if commit else {} for commit in (base, tip, remote_tip)]
    files: dict[str, bytes] = {}
    new_objects: list[GitObject] = []
    conflicts: dict[str, list[str]] = {}
    for label in sorted(set().union(*sides)):
        common, ours, others = (side.get(label) for side in sides)
        if ours in (common, others):
            blob = others
        elif others == common:
            blob = ours
        else:
            texts = [push.text_of(side[label], label) for side in sides if label in side]
            if len(texts) == len(sides):
                text = merge_lines(*texts)
            else:
                text = None
            if text is None:
                kind = _kind_of_conflict(common, ours, others)
                conflicts.setdefault(kind, []).append(path_of(label))
                continue
            new_objects.append(objects.git_object("blob", text.encode()))
            blob = new_objects[-1].id
        if blob is not None:
            files[label] = blob
    push.require_faultless(push.new_commits(remote_tip))
    if conflicts:
        sentences = [kind.format(", ".join(paths)) for kind, paths in conflicts.items()]
        raise Conflict(" ".join([*sentences, "Merge the branch from-ricordo into main there."]))
    tree = tree_of(files)
    new_objects += [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    new_objects.append(
        objects.git_object(
            "commit", commit_body(tree.id, (tip, remote_tip), signature(author), now, MERGE_MESSAGE)
        )
    )
    new = {**push.new, **{git_object.id: git_object for git_object in new_objects}}
    return Push(new, push.find, push.limits).adoption(tip, new_objects[-1].id)
