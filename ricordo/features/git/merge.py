"""Two histories of one memory that went on apart are joined by a merge commit, where no two changes touch the same lines."""

from collections.abc import Mapping

from ricordo.domain.git_objects import commit_body, path_of, signature, tree_of
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict
from ricordo.features.git.adoption import Adoption
from ricordo.features.git.objects import GitObject, git_object
from ricordo.features.git.push import Push
from ricordo.memory.merge import merge_lines

MESSAGE = "Merge what was committed elsewhere"


def known_parents(push: Push, theirs: bytes) -> list[bytes]:
    """Where commits that are new here go on from what is here: the parents of theirs that the memory has."""
    order = push.new_commits(theirs)
    new = {commit.id for commit in order}
    return list(dict.fromkeys(parent for commit in order for parent in commit.parents if parent not in new))


def joined(push: Push, base: bytes | None, tip: bytes, theirs: bytes, by: Actor, now: int) -> Adoption:
    """What follows for a memory at `tip` that is merged with their commits; `base` is the newest commit of both.

    Raises Conflict that names each block where both changed the same lines, Refused with all that is wrong with theirs.
    """
    order = push.new_commits(theirs)
    common = push.files_of(push.tree_of(base)) if base else {}
    ours, others = push.files_of(push.tree_of(tip)), push.files_of(order[-1].tree)
    files: dict[str, bytes] = {}
    made: dict[bytes, GitObject] = {}
    collisions: list[str] = []
    for label in sorted(common.keys() | ours.keys() | others.keys()):
        is_settled, blob = _chosen(common.get(label), ours.get(label), others.get(label))
        if not is_settled:
            text = _merged_text(push, label, common, ours, others)
            if text is None:
                collisions.append(path_of(label))
                continue
            new = git_object("blob", text.encode())
            made[new.id] = new
            blob = new.id
        if blob is not None:
            files[label] = blob
    push.require_faultless()
    if collisions:
        raise Conflict(
            f"The memory and its remote both changed the same lines of {', '.join(collisions)}. Merge the branch from-ricordo "
            "into main there."
        )
    tree = tree_of(files)
    for id, body in tree.bodies.items():
        made[id] = GitObject("tree", id, body)
    merge = git_object("commit", commit_body(tree.id, (tip, theirs), signature(by), now, MESSAGE))
    made[merge.id] = merge
    return Push({**push.new, **made}, push.find, push.limits).adoption(tip, merge.id)


def _chosen(common: bytes | None, ours: bytes | None, others: bytes | None) -> tuple[bool, bytes | None]:
    """Whether one side's text can be taken as it is, and which."""
    if ours in (common, others):
        return True, others
    return others == common, ours


def _merged_text(
    push: Push, label: str, common: Mapping[str, bytes], ours: Mapping[str, bytes], others: Mapping[str, bytes]
) -> str | None:
    texts = [push.text_of(files[label], label) for files in (common, ours, others) if label in files]
    return merge_lines(*texts) if len(texts) == 3 else None
