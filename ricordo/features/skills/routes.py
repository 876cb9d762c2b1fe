"""Routes of skills, with the same routes below a user, an agent and the organization.

A skill's history, blame and comparisons are at the routes of its block: `/v1/blocks/{block_id}/…`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, File, Response

from ricordo.api.blocks import Before, Limit, page_of
from ricordo.api.call import HttpCall, RequestContext
from ricordo.api.models.base import binary
from ricordo.api.models.memory import (
    DecidedResponse,
    ProposalResponse,
    RejectRequest,
    RestoreRequest,
    VersionResponse,
)
from ricordo.api.proposals import Decided, decided
from ricordo.api.routing import Routes, needs
from ricordo.api.users import waiting_for
from ricordo.domain.scope import Actor
from ricordo.domain.text import Json
from ricordo.domain.version import BlockVersion
from ricordo.errors import Invalid
from ricordo.features.skills import service
from ricordo.features.skills.models import (
    PutSkillRequest,
    SkillOutcomeResponse,
    SkillPolicyRequest,
    SkillResponse,
    SkillSummaryResponse,
    SkillZipForm,
)
from ricordo.features.skills.service import SkillOwner, SkillOwnerKind
from ricordo.features.skills.skill import Skill, label_of, make_skill, parse_skill
from ricordo.features.skills.zips import MOST_BYTES, from_zip, to_zip
from ricordo.memory.approval import Conflicted
from ricordo.memory.submission import Submission, SubmissionOutcome
from ricordo.offload import offload
from ricordo.storage import proposals
from ricordo.storage.engine.repository import Page
from ricordo.storage.engine.store import Transaction
from ricordo.storage.proposals import ProposalFilter

_ZIP = "application/zip"
_MOST_PROPOSALS = 100


class _Owner:
    """The owner in the address of a request."""

    def __init__(self, kind: SkillOwnerKind, id: str) -> None:
        self.kind = kind
        self.id = id

    def open(self, tx: Transaction, context: HttpCall, *, makes: bool = False) -> SkillOwner:
        """Return the owner of skills, if the caller may know the owner.

        Args:
            tx: The transaction.
            context: The call.
            makes: Whether a missing user and a missing chain are created.

        Raises:
            NotFound: There is no such user or agent.
            Invalid: No user can have this name.
        """
        return service.open_owner(tx, context.scope, self.kind, self.id, makes=makes)


def _of_user(user_id: str) -> _Owner:
    return _Owner("user", user_id)


def _of_agent(agent_id: str) -> _Owner:
    return _Owner("agent", agent_id)


def _of_organization() -> _Owner:
    return _Owner("organization", "")


def _routes(prefix: str, scope: str, owner_of: Callable[..., _Owner]) -> Routes:
    """Return the routes of skills below one kind of owner."""
    router = Routes(prefix=f"{prefix}/skills", tags=["skills"], scope=scope)
    place: _Owner = Depends(owner_of)
    of_all = Routes(prefix=f"{prefix}/skill-proposals", tags=["skills"], scope=scope)

    @of_all.get("", response_model=list[ProposalResponse])
    def list_skill_proposals(
        tx: Transaction, context: RequestContext, place: _Owner = place
    ) -> list[Json]:
        """List the waiting proposals for all skills, including new ones."""
        owner = place.open(tx, context)
        rows = proposals.of_skills(tx, context.scope, owner.chain.id, _MOST_PROPOSALS)
        return [ProposalResponse.of(proposal) for proposal in rows]

    _add_reads(router, place)
    _add_writes(router, place)
    _add_decisions(router, place)
    router.routes += of_all.routes
    return router


def _add_reads(router: Routes, place: _Owner) -> None:
    """Add the routes that read skills."""

    @router.get("", response_model=list[SkillSummaryResponse])
    def list_skills(tx: Transaction, context: RequestContext, place: _Owner = place) -> list[Json]:
        """List the skills by name, without their contents."""
        owner = place.open(tx, context)
        return [SkillSummaryResponse.from_skill(owner, one) for one in service.listed(tx, owner)]

    @router.get("/{skill_name}", response_model=SkillResponse)
    def retrieve_skill(
        tx: Transaction, context: RequestContext, skill_name: str, place: _Owner = place
    ) -> Json:
        """Return a skill with its files."""
        owner = place.open(tx, context)
        return SkillResponse.from_skill(owner, service.get(tx, owner, skill_name))

    @router.get("/{skill_name}/history", response_model=list[VersionResponse])
    def list_versions(
        tx: Transaction,
        context: RequestContext,
        skill_name: str,
        limit: Limit = 50,
        before: Before = None,
        place: _Owner = place,
    ) -> Sequence[BlockVersion]:
        """List the skill's versions, newest first, even after it was deleted."""
        return page_of(tx, place.open(tx, context).chain.id, label_of(skill_name), limit, before)

    @router.get("/{skill_name}/archive", response_class=Response, responses=binary(_ZIP))
    async def export_skill(
        context: RequestContext, skill_name: str, place: _Owner = place
    ) -> Response:
        """Return the skill as a zip file with its folder, which other programs can read."""

        def read(tx: Transaction) -> Skill:
            stored = service.get(tx, place.open(tx, context), skill_name)
            if stored.problem:
                raise Invalid(f'The skill "{skill_name}" cannot be exported. {stored.problem}')
            return parse_skill(stored.block.value, skill_name)

        skill = await context.store.read(read)
        content = await offload(lambda: to_zip(skill), len(skill.text))
        headers = {"content-disposition": f'attachment; filename="{skill.name}.zip"'}
        return Response(content, media_type=_ZIP, headers=headers)

    @router.get("/{skill_name}/proposals", response_model=list[ProposalResponse])
    def list_proposals(
        tx: Transaction, context: RequestContext, skill_name: str, place: _Owner = place
    ) -> list[Json]:
        """List the waiting proposals for a skill, which may be new. The newest come first."""
        owner = place.open(tx, context)
        waiting = ProposalFilter(chain_id=owner.chain.id, label=label_of(skill_name), waits=True)
        page = Page(limit=_MOST_PROPOSALS, is_bounded=True)
        rows = proposals.page(tx, context.scope, page, waiting)
        if not rows:
            # Raises NotFound for a skill that never existed.
            page_of(tx, owner.chain.id, label_of(skill_name), 1, None)
        return [ProposalResponse.of(proposal) for proposal in rows]


def _add_writes(router: Routes, place: _Owner) -> None:
    """Add the routes that change skills."""

    @router.post("", response_model=SkillOutcomeResponse)
    async def import_skill(
        context: RequestContext, body: Annotated[SkillZipForm, File()], place: _Owner = place
    ) -> Json:
        """Store the skill in a zip file, which replaces one of the same name.

        A program that may only propose proposes it.
        """
        content = await body.file.read(MOST_BYTES + 1)

        def work(tx: Transaction) -> Json:
            # Open the owner first, so that a caller who may not see the owner is refused before the
            # zip file is opened.
            owner = place.open(tx, context, makes=True)
            skill = from_zip(content)
            edit = _edit(context, owner, f"Import {skill.name} from a zip file")
            keeps = body.keeps_hidden_text
            outcome = service.put(tx, owner, skill, edit, keeps_hidden_text=keeps)
            return _outcome(tx, owner, skill.name, outcome)

        return await context.store.write(work)

    @router.put("/{skill_name}", response_model=SkillOutcomeResponse)
    def put_skill(
        tx: Transaction,
        context: RequestContext,
        skill_name: str,
        body: PutSkillRequest,
        place: _Owner = place,
    ) -> Json:
        """Write a skill with all its files. The front matter must have the same name.

        A program that may only propose proposes it.
        """
        owner = place.open(tx, context, makes=True)
        skill = make_skill(body.content, body.files, name=skill_name)
        outcome = service.put(
            tx,
            owner,
            skill,
            _edit(context, owner, body.message),
            expected=body.version,
            keeps_hidden_text=body.keeps_hidden_text,
        )
        return _outcome(tx, owner, skill_name, outcome)

    @router.patch("/{skill_name}", response_model=SkillResponse)
    def modify_skill(
        tx: Transaction,
        context: RequestContext,
        skill_name: str,
        body: SkillPolicyRequest,
        place: _Owner = place,
    ) -> Json:
        """Set the policy for agents' changes of a skill.

        `direct` counts as `guarded`, since untrusted content must not change instructions.
        """
        owner = place.open(tx, context)
        by = _actor(context, owner)
        return SkillResponse.from_skill(
            owner, service.set_policy(tx, owner, skill_name, body.policy, by)
        )

    @router.delete("/{skill_name}", response_model=SkillOutcomeResponse)
    def delete_skill(
        tx: Transaction, context: RequestContext, skill_name: str, place: _Owner = place
    ) -> Json:
        """Delete a skill. Its history stays, and a version can be restored."""
        owner = place.open(tx, context)
        edit = _edit(context, owner, None)
        return _outcome(tx, owner, skill_name, service.remove(tx, owner, skill_name, edit))

    @router.post("/{skill_name}/restore", response_model=SkillOutcomeResponse)
    def restore_skill(
        tx: Transaction,
        context: RequestContext,
        skill_name: str,
        body: RestoreRequest,
        place: _Owner = place,
    ) -> Json:
        """Restore a skill, with all its files, as it was at a version."""
        owner = place.open(tx, context)
        edit = _edit(context, owner, body.message)
        return _outcome(
            tx, owner, skill_name, service.restore(tx, owner, skill_name, body.sha, edit)
        )


def _add_decisions(router: Routes, place: _Owner) -> None:
    """Add the routes that decide about proposals."""

    @router.post("/{skill_name}/proposals/{proposal_id}/approve", response_model=DecidedResponse)
    @needs("memory:approve", "memory:override")
    async def approve_proposal(
        context: RequestContext, skill_name: str, proposal_id: str, place: _Owner = place
    ) -> Response | Json:
        """Make the proposed skill its next version, merged by lines with later changes.

        If lines conflict, nothing is written, and 409 returns the three texts.
        """

        def work(tx: Transaction) -> Decided | Conflicted:
            owner = place.open(tx, context)
            by = _actor(context, owner)
            outcome = service.approve(tx, context.scope, owner, skill_name, proposal_id, by)
            if isinstance(outcome, Conflicted):
                return outcome
            return outcome.proposal, outcome.block, waiting_for(tx, outcome.block)

        return await decided(await context.store.write(work))

    @router.post("/{skill_name}/proposals/{proposal_id}/reject", response_model=DecidedResponse)
    @needs("memory:approve", "memory:override")
    async def reject_proposal(
        context: RequestContext,
        skill_name: str,
        proposal_id: str,
        body: RejectRequest | None = None,
        place: _Owner = place,
    ) -> Response | Json:
        """Leave the skill as it is, and store the reason with the proposal."""

        def work(tx: Transaction) -> Decided:
            owner = place.open(tx, context)
            reason = body.reason if body else None
            by = _actor(context, owner)
            rejected = service.reject(
                tx, context.scope, owner, skill_name, proposal_id, by=by, reason=reason
            )
            return rejected, None, 0

        return await decided(await context.store.write(work))


def _actor(context: HttpCall, owner: SkillOwner) -> Actor:
    return context.actor_for(owner.user) if owner.user else context.scope.actor


def _edit(context: HttpCall, owner: SkillOwner, reason: str | None) -> Submission:
    return context.submission(owner.user, reason)


def _outcome(
    tx: Transaction, owner: SkillOwner, skill_name: str, outcome: SubmissionOutcome
) -> Json:
    skill = None
    if outcome.block is not None:
        skill = SkillResponse.from_skill(owner, service.get(tx, owner, skill_name))
    proposal = ProposalResponse.of(outcome.proposal) if outcome.proposal else None
    return SkillOutcomeResponse.of(None, skill=skill, proposal=proposal)


router = _routes("/v1/users/{user_id}", "memory", _of_user)
router.routes += _routes("/v1/agents/{agent_id}", "agents", _of_agent).routes
router.routes += _routes("/v1", "agents", _of_organization).routes
