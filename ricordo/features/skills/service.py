"""Read, write, delete, restore and approve skills of users, agents and organizations.

A skill is a block of its owner, so the functions of `memory/` do the work on that block. This
module adds the format. Each write locks the chain first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ricordo.domain.block import Block, Chain, Policy
from ricordo.domain.ids import new_id
from ricordo.domain.scope import Actor, Scope, User
from ricordo.domain.version import ChangeMetadata, Proposal
from ricordo.errors import Forbidden, Invalid, NotFound, RicordoError
from ricordo.features.skills.skill import (
    FrontMatter,
    Skill,
    label_of,
    name_of,
    parse_skill,
    read_front_matter,
    require_visible,
)
from ricordo.memory import approval, submission, user_memory
from ricordo.memory.approval import Approved, Conflicted
from ricordo.memory.edits import require_storable
from ricordo.memory.proposals import ProposalDraft, Unchanged, propose, require_shown
from ricordo.memory.submission import Submission, SubmissionOutcome
from ricordo.storage import agents, blocks, organizations, proposals, skills, versions
from ricordo.storage.engine.store import Transaction

SkillOwnerKind = Literal["user", "agent", "organization"]


@dataclass(frozen=True, slots=True)
class SkillOwner:
    """The owner of skills, with the chain that holds them.

    `user` is set if the owner is a user.
    """

    kind: SkillOwnerKind
    id: str
    chain: Chain
    user: User | None = None


@dataclass(frozen=True, slots=True)
class StoredSkill:
    """A stored skill: its block, and its content if the text follows the format.

    A pushed or merged text may violate the format. Then `problem` says why, and agents do not get
    the skill. In lists `content` and `files` are empty, since they read only the beginnings of
    texts. `waiting` is the number of proposals that wait for the owner.
    """

    block: Block
    front: FrontMatter | None
    problem: str | None = None
    content: str = ""
    files: Mapping[str, str] | None = None
    waiting: int = 0

    @property
    def name(self) -> str:
        return name_of(self.block.label)

    @property
    def description(self) -> str:
        return self.front.description if self.front else ""


def open_owner(
    tx: Transaction, scope: Scope, kind: SkillOwnerKind, id: str, *, makes: bool = False
) -> SkillOwner:
    """Return the owner of skills.

    Args:
        tx: The transaction.
        scope: The caller.
        kind: The kind of owner.
        id: The user's id or identifier, or the agent's id. It is ignored for an organization, which
            is always the caller's.
        makes: Whether a missing user and a missing chain are created. Otherwise an owner without a
            chain gets one that is not stored.

    Raises:
        NotFound: if there is no such user or agent.
        Invalid: if the name of a new user is not allowed.
    """
    if kind == "user":
        memory = user_memory.open_memory(tx, scope, id, makes=makes)
        return SkillOwner("user", memory.user.id, memory.chain, memory.user)
    if kind == "agent":
        agents.get(tx, scope, id)
    else:
        id = scope.organization_id
    if chain := versions.of_owner(tx, scope, kind, id):
        return SkillOwner(kind, id, chain)
    chain = Chain(new_id("chain"), scope.organization_id, kind, id)
    if makes:
        # Two concurrent first writes would create two chains, so the second one waits for this
        # lock.
        if kind == "agent":
            agents.lock(tx, scope, id)
        else:
            organizations.lock(tx, id)
        if stored := versions.of_owner(tx, scope, kind, id):
            return SkillOwner(kind, id, stored)
        versions.insert_chain(tx, chain)
    return SkillOwner(kind, id, chain)


def listed(tx: Transaction, owner: SkillOwner) -> list[StoredSkill]:
    """Return the owner's skills by name, without their contents.

    Args:
        tx: The transaction.
        owner: The owner of the skills. There are none if the owner's chain is not stored.
    """
    waiting = proposals.waiting_counts(tx, owner.chain.id)
    return [
        replace(listed_skill(block), waiting=waiting.get(block.label, 0))
        for block in skills.of_chain(tx, owner.chain.id)
    ]


def listed_skill(block: Block) -> StoredSkill:
    """Return a skill without its content.

    Args:
        block: The skill's block. The beginning of its text is enough.
    """
    try:
        front = read_front_matter(block.value)
    except Invalid as error:
        return StoredSkill(block, None, str(error))
    if front.name != name_of(block.label):
        return StoredSkill(block, None, f'Its front matter names "{front.name}".')
    return StoredSkill(block, front)


def stored_skill(block: Block, waiting: int = 0) -> StoredSkill:
    """Return a skill with its content.

    Args:
        block: The skill's block with its whole text.
        waiting: The number of proposals that wait for the owner.
    """
    try:
        skill = parse_skill(block.value, name_of(block.label))
    except RicordoError as error:
        return StoredSkill(block, None, str(error), content=block.value, waiting=waiting)
    return StoredSkill(
        block, skill.front, content=skill.content, files=skill.files, waiting=waiting
    )


def get(tx: Transaction, owner: SkillOwner, name: str) -> StoredSkill:
    """Return the owner's skill with its content.

    Args:
        tx: The transaction.
        owner: The owner of the skill.
        name: The skill's name.

    Raises:
        NotFound: if there is no such skill.
        Invalid: if no skill can have this name.
    """
    label = label_of(name)
    block = blocks.labelled(tx, owner.chain.id, label)
    if block is None:
        raise NotFound(f'There is no skill "{name}" here. Read the list of skills.')
    return stored_skill(block, proposals.waiting_counts(tx, owner.chain.id).get(label, 0))


def put(
    tx: Transaction,
    owner: SkillOwner,
    skill: Skill,
    edit: Submission,
    *,
    expected: str | None = None,
    keeps_hidden_text: bool = False,
) -> SubmissionOutcome:
    """Write the skill as its block's next version, or propose it.

    Args:
        tx: The transaction.
        owner: The owner, whose chain is stored.
        skill: The skill.
        edit: The author. If the author does not own the skill, its policy decides.
        expected: The version from which the skill was edited, in hex digits. Later changes are
            merged.
        keeps_hidden_text: Whether the skill may contain invisible characters.

    Raises:
        Stale: The skill was deleted since, or later changes conflict with the new text.
        Invalid: The skill has hidden text, or the merged text does not follow the format.
        NotFound: The owner's chain is not stored.
        Forbidden, TooLong, Conflict: The reasons are those of memory blocks.
    """
    chain = _locked(tx, owner)
    block = blocks.labelled(tx, chain.id, skill.label)
    before = block.value if block else ""
    if not keeps_hidden_text:
        require_visible(skill, before)
    metadata = edit.metadata(f"{'Edit' if block else 'Make'} {skill.label}")
    tx.quotas.require_text(skill.label, skill.text, before)
    require_storable(skill.text, edit.reason)
    if block:
        text = user_memory.merged(tx, block, skill.text, expected)
        parse_skill(text, skill.name)
        return submission.change(tx, block, replace(block, value=text), edit)
    user_memory.require_no_version("skill", skill.name, expected)
    chain.require_distinct_label(skill.label)
    if metadata.is_owners_of(chain):
        made = user_memory.make(
            tx, chain, skill.label, text=skill.text, metadata=metadata, settings={}
        )
        return SubmissionOutcome(made)
    require_shown(metadata, skill.text)
    return SubmissionOutcome(None, _propose(tx, chain, skill, None, metadata, edit.expires_after))


def propose_by_agent(
    tx: Transaction,
    owner: SkillOwner,
    skill: Skill,
    metadata: ChangeMetadata,
    expires_after: int | None,
) -> SubmissionOutcome:
    """Propose an agent's new or changed skill, or write it if the skill's policy allows that.

    A new skill is always proposed, and so is every change from a step with untrusted content.

    Args:
        tx: The transaction.
        owner: The owner, whose chain is stored.
        skill: The whole skill after the change.
        metadata: The agent as the author, with its run, step and reason.
        expires_after: The lifetime of a proposal in microseconds; None if it never expires.

    Raises:
        Forbidden: if the skill is read-only.
        Unchanged: if the skill is like this already.
        Conflict: if the label is like another one, or too many proposals wait.
        Declined: if the owner recently rejected the same change.
        Invalid: if the texts contain a secret or new hidden text.
        TooLong: if the skill is longer than its limit.
        NotFound: if the owner's chain is not stored.
    """
    chain = _locked(tx, owner)
    block = blocks.labelled(tx, chain.id, skill.label)
    require_storable(skill.text, metadata.reason)
    require_shown(metadata, skill.text, before=block.value if block else "")
    if block is None:
        chain.require_distinct_label(skill.label)
        return SubmissionOutcome(None, _propose(tx, chain, skill, None, metadata, expires_after))
    policy = "guarded" if block.rule == "direct" else block.rule
    match metadata.policy_decision(policy, None):
        case "refuse":
            raise Forbidden(f'The skill "{skill.name}" is read-only: only its owner may change it.')
        case "apply":
            changed = replace(block, value=skill.text)
            changed.require_fits(skill.text)
            return SubmissionOutcome(blocks.update(tx, block, changed, metadata))
        case "propose":
            proposal = _propose(tx, chain, skill, block, metadata, expires_after)
            return SubmissionOutcome(block, proposal)


def _propose(
    tx: Transaction,
    chain: Chain,
    skill: Skill,
    block: Block | None,
    metadata: ChangeMetadata,
    expires_after: int | None,
) -> Proposal:
    base = block or Block("", chain.organization_id, chain.id, skill.label, "")
    base.require_fits(skill.text)
    if block and block.value == skill.text:
        raise Unchanged(f'The skill "{skill.name}" is like this already. Nothing was proposed.')
    draft = ProposalDraft(chain.id, skill.label, skill.text, block)
    return propose(tx, draft, metadata, expires_after)


def set_policy(
    tx: Transaction, owner: SkillOwner, name: str, policy: Policy, by: Actor
) -> StoredSkill:
    """Set the policy for agents' changes.

    Args:
        tx: The transaction.
        owner: The owner of the skill.
        name: The skill's name.
        policy: The new policy. A block that was marked read-only loses that mark.
        by: The caller, who must own the skill.

    Raises:
        NotFound: if there is no such skill.
        Forbidden: if the caller does not own it.
    """
    chain = _locked(tx, owner)
    skill = get(tx, owner, name)
    metadata = ChangeMetadata(by, f"Set the policy of {skill.block.label}")
    if not metadata.is_owners_of(chain):
        raise Forbidden(f'Only the owner of the skill "{name}" may set its policy.')
    changed = replace(skill.block, policy=policy, read_only=False)
    if changed == skill.block:
        return skill
    return replace(skill, block=blocks.update(tx, skill.block, changed, metadata))


def remove(tx: Transaction, owner: SkillOwner, name: str, edit: Submission) -> SubmissionOutcome:
    """Delete the skill, or propose its deletion.

    Its history stays.

    Args:
        tx: The transaction.
        owner: The owner of the skill.
        name: The skill's name.
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        NotFound: if there is no such skill.
        Forbidden: if the policy does not let the author delete it.
        Conflict: if too many proposals wait.
    """
    _locked(tx, owner)
    return submission.remove(tx, get(tx, owner, name).block, edit)


def restore(
    tx: Transaction, owner: SkillOwner, name: str, version_id: str, edit: Submission
) -> SubmissionOutcome:
    """Restore a version of the skill, even after its deletion, or propose to restore it.

    Args:
        tx: The transaction.
        owner: The owner of the skill.
        name: The skill's name.
        version_id: The version's id in hex digits, or its first digits (at least 7).
        edit: The author, the reason, and the lifetime of a proposal.

    Raises:
        NotFound: if there is no such version, or the skill did not exist at it.
        Conflict: if the id is not unique, the label is taken, or too many proposals wait.
        Invalid: if the text of that version does not follow the format.
        Forbidden: if the skill is read-only for the author.
        TooLong: if the text is longer than the block's limit.
    """
    chain = _locked(tx, owner)
    label = label_of(name)
    version, text = user_memory.text_at(tx, chain.id, label, version_id)
    skill = parse_skill(text, name)
    metadata = edit.metadata(f"Restore {label} as of {version.id.hex()[:12]}")
    if blocks.labelled(tx, chain.id, label) is None and metadata.is_owners_of(chain):
        return SubmissionOutcome(user_memory.revive(tx, chain, label, text, metadata))
    return put(tx, owner, skill, replace(edit, reason=metadata.reason), keeps_hidden_text=True)


def approve(
    tx: Transaction, scope: Scope, owner: SkillOwner, name: str, proposal_id: str, by: Actor
) -> Approved | Conflicted:
    """Approve a proposal of this skill.

    Args:
        tx: The transaction.
        scope: The caller.
        owner: The owner of the skill.
        name: The skill's name.
        proposal_id: The proposal.
        by: The owner who decides.

    Raises:
        NotFound: if the skill has no such proposal.
        Invalid: if the approved text is not a skill.
        Conflict, Forbidden, TooLong: as `approval.approve` does.
    """
    scope = _require_proposal(tx, scope, owner, name, proposal_id)
    outcome = approval.approve(tx, scope, proposal_id, by)
    if isinstance(outcome, Approved) and outcome.block:
        parse_skill(outcome.block.value, name)
    return outcome


def reject(
    tx: Transaction,
    scope: Scope,
    owner: SkillOwner,
    name: str,
    proposal_id: str,
    by: Actor,
    reason: str | None,
) -> Proposal:
    """Reject a proposal of this skill.

    Args:
        tx: The transaction.
        scope: The caller.
        owner: The owner of the skill.
        name: The skill's name.
        proposal_id: The proposal.
        by: The owner who decides.
        reason: The reason that the agent reads; None if the owner gives none.

    Raises:
        NotFound: if the skill has no such proposal.
        Conflict: if the proposal is already decided.
        Forbidden: unless an owner decides.
    """
    scope = _require_proposal(tx, scope, owner, name, proposal_id)
    return approval.reject(tx, scope, proposal_id, by, reason=reason)


def _require_proposal(
    tx: Transaction, scope: Scope, owner: SkillOwner, name: str, proposal_id: str
) -> Scope:
    """Return the scope for the decision. Raises NotFound for a proposal of another skill."""
    proposal = proposals.get(tx, scope, proposal_id)
    if (proposal.chain_id, proposal.label) != (owner.chain.id, label_of(name)):
        raise NotFound(f"Proposal with ID {proposal_id} not found")
    return replace(scope, subject_id=owner.user.id) if owner.user else scope


def _locked(tx: Transaction, owner: SkillOwner) -> Chain:
    chain = versions.lock(tx, owner.chain.id)
    if chain is None:
        raise NotFound("There are no skills here. Make one first.")
    return chain
