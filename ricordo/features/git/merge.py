"""Two histories of one memory that went on apart are joined by a merge commit, where no two changes touch the same lines."""

from ricordo.domain.git_objects import commit_body, path_of, signature, tree_of
from ricordo.domain.scope import Actor
from ricordo.errors import Conflict
from ricordo.features.git.adoption import Adoption
from ricordo.features.git.objects import GitObject, git_object
from ricordo.features.git.push import Push
from ricordo.memory.merge import merge_lines

MESSAGE = "Merge what was committed elsewhere"


def known_parents(push: Push, theirs: bytes) -> list[bytes]:
    """The parents of the new commits that the memory has: where they go on from it."""
    order = push.new_commits(theirs)
    new = {commit.id for commit in order}
    return list(dict.fromkeys(parent for commit in order for parent in commit.parents if parent not in new))


def merged(push: Push, base: bytes | None, tip: bytes, theirs: bytes, by: Actor, now: int) -> Adoption:
    """What follows for a memory at `tip` that is merged with their commits; `base` is the newest commit of both.

    Raises Conflict that names each block where both changed the same lines, Refused with all that is wrong with theirs.
    """
    push.new_commits(theirs)
    sides = [push.files_of(commit) if commit else {} for commit in (base, tip, theirs)]
    files: dict[str, bytes] = {}
    made: list[GitObject] = []
    conflicts: list[str] = []
    for label in sorted(set().union(*sides)):
        common, ours, others = (side.get(label) for side in sides)
        if ours in (common, others):
            blob = others
        elif others == common:
            blob = ours
        else:
            texts = [push.text_of(side[label], label) for side in sides if label in side]
            text = merge_lines(*texts) if len(texts) == len(sides) else None
            if text is None:
                conflicts.append(path_of(label))
                continue
            made.append(git_object("blob", text.encode()))
            blob = made[-1].id
        if blob is not None:
            files[label] = blob
    push.new_commits(theirs)  # raises what was found to be wrong with the files
    if conflicts:
        raise Conflict(
            f"The memory and its remote both changed the same lines of {', '.join(conflicts)}. Merge the branch from-ricordo "
            "into main there."
        )
    tree = tree_of(files)
    made += [GitObject("tree", id, body) for id, body in tree.bodies.items()]
    made.append(git_object("commit", commit_body(tree.id, (tip, theirs), signature(by), now, MESSAGE)))
    new = {**push.new, **{one.id: one for one in made}}
    return Push(new, push.find, push.limits).adoption(tip, made[-1].id)
