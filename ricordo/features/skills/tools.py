"""The tools for agents to open skills, to run their scripts, and to propose new or changed skills."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from ricordo.domain.block import Block
from ricordo.domain.scope import Actor, Scope
from ricordo.domain.version import ChangeMetadata
from ricordo.errors import Forbidden, Invalid, NotFound
from ricordo.features.skills import service
from ricordo.features.skills.prompt import skill_blocks
from ricordo.features.skills.service import SkillOwner
from ricordo.features.skills.skill import (
    SKILL_FILE,
    Skill,
    label_of,
    make_skill,
    name_of,
    parse_skill,
    parts_of,
)
from ricordo.memory.edits import LONGEST_REASON, changed_piece
from ricordo.memory.proposals import Unchanged, expiry_of
from ricordo.memory.submission import SubmissionOutcome
from ricordo.sandbox.service import SandboxCall, SandboxLimits, report_of
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, ToolContext

_LIMITS = SandboxLimits(seconds=120, cpu_seconds=60, output_kb=512)
_MOST_ARGUMENTS = 50
_LONGEST_INPUT = 200_000  # characters
# The programs of the sandbox that run a script, by its ending.
_PROGRAMS = {".py": "python3", ".sh": "sh"}


async def open_skill(context: ToolContext, skill: str, file: str = SKILL_FILE) -> str:
    """Read a skill of the section <skills>: its instructions, or another of its files.

    Args:
        skill: The name of the skill.
        file: A file that its instructions name, such as references/forms.md. By default the instructions.
    """
    block, opened = await _opened(context, skill)
    if file != SKILL_FILE:
        if file not in opened.files:
            raise NotFound(
                f'The skill "{skill}" has no file "{file[:80]}". It has: {_file_names(opened)}.'
            )
        return opened.files[file]
    version = (block.head or b"").hex()[:12]
    lines = [f"Skill {opened.name}, version {version}. Files: {_file_names(opened)}."]
    return "\n".join([*lines, "", opened.body])


async def run_skill_script(
    context: ToolContext,
    skill: str,
    script: str,
    arguments: list[str] | None = None,
    input: str = "",
) -> dict[str, Any]:
    """Run a script of a skill in a sandbox that has the files of the skill, and no network.

    Nothing is kept from one call to the next.

    Args:
        skill: The name of the skill.
        script: The path of the script in the skill, such as scripts/run.py. Its ending is .py or .sh.
        arguments: The arguments of the script.
        input: The text that the script reads from its standard input.
    """
    _, opened = await _opened(context, skill)
    arguments = arguments or []
    if script not in opened.files:
        raise NotFound(
            f'The skill "{skill}" has no script "{script[:80]}". It has: {_file_names(opened)}.'
        )
    program = _PROGRAMS.get(PurePosixPath(script).suffix)
    if program is None:
        raise Invalid(f'"{script}" cannot be run: its ending is none of {", ".join(_PROGRAMS)}.')
    too_long = len(input) > _LONGEST_INPUT or sum(map(len, arguments)) > _LONGEST_INPUT
    if len(arguments) > _MOST_ARGUMENTS or too_long or any("\0" in text for text in arguments):
        raise Invalid(
            f"A script takes {_MOST_ARGUMENTS} arguments and {_LONGEST_INPUT} characters at most, "
            "and no NUL characters."
        )
    files = {SKILL_FILE: opened.content, **opened.files}
    call = SandboxCall(
        (program, script, *arguments),
        stdin=input.encode("utf-8", "replace"),
        files={path: text.encode() for path, text in files.items()},
        limits=_LIMITS,
    )
    result = await context.sandbox.run(call)
    exit_code = 0 if result.reason else result.exit_code
    return report_of(result, exit_code=exit_code, error=result.reason)


async def propose_skill(
    context: ToolContext,
    skill: str,
    reason: str,
    instructions: str | None = None,
    files: dict[str, str] | None = None,
    removed_files: list[str] | None = None,
    owner: Literal["user", "agent", "organization"] | None = None,
) -> str:
    """Propose a new skill, or a change of one. Its owner decides. Use it for what you learned to do well.

    Args:
        skill: The name: lower case letters, digits and hyphens, such as pdf-tables.
        reason: Why, in one sentence, for the owner.
        instructions: The whole SKILL.md; leave it out to keep it. First lines: ---, name: …, description: …, ---.
        files: Other files to add or replace, whole, by path, such as scripts/run.py.
        removed_files: Paths of files to take out.
        owner: Whose skill it is. In a conversation with a user it is the user's.
    """
    if len(reason) > LONGEST_REASON:
        raise Invalid(f"The reason has more than {LONGEST_REASON} characters.")
    kind = _owner_kind(context, owner)
    agent = context.state.agent
    metadata = ChangeMetadata(
        Actor("agent", agent.id, agent.name),
        reason.strip() or f"Propose the skill {skill}",
        run_id=context.step.run_id or None,
        step_id=context.step.id or None,
        # A change from a step with untrusted content is proposed, whatever the skill's policy is.
        is_untrusted=context.step.is_untrusted() or bool(context.step.callers),
    )

    def work(tx: Transaction) -> SubmissionOutcome:
        scope = Scope(agent.organization_id)
        id = context.state.conversation.user_id or agent.memory_id
        place = service.open_owner(tx, scope, kind, id, makes=True)
        present = _present(tx, context, place, skill)
        changed = _changed(present, skill, instructions, files or {}, removed_files or [])
        _require_no_spill(context, present, changed)
        return service.propose_by_agent(tx, place, changed, metadata, expiry_of(context.settings))

    try:
        outcome = await context.store.write(work)
    except Unchanged as unchanged:
        return str(unchanged)
    proposal = outcome.proposal
    if proposal is None:
        return f"The skill {skill} is changed."
    if proposal.is_repeated:
        return f"The same proposal waits already ({proposal.id}). Do not propose it again."
    return f"Proposed ({proposal.id}). The skill stays as it is until its owner approves it."


def _owner_kind(
    context: ToolContext, owner: Literal["user", "agent", "organization"] | None
) -> Literal["user", "agent", "organization"]:
    """Return the kind of owner of the proposed skill. Raises Forbidden, Invalid."""
    is_about_user = context.state.conversation.user_id is not None
    if is_about_user and owner not in (None, "user"):
        raise Forbidden(
            "A skill from a conversation with a user belongs to that user. Propose it for the user."
        )
    if owner == "user" and not is_about_user:
        raise Invalid("This conversation is about no user. Propose the skill for the agent.")
    return owner or ("user" if is_about_user else "agent")


def _present(tx: Transaction, context: ToolContext, place: SkillOwner, name: str) -> Block | None:
    """Return the block of the owner's skill; None if there is no such skill.

    Raises Forbidden if the turn's model may not see the block, or if it is for another agent.
    """
    block = blocks.labelled(tx, place.chain.id, label_of(name))
    if block is None:
        return None
    if block.agent_id not in (None, context.state.agent.memory_id):
        raise Forbidden(f'There is a skill "{name}" for another agent. Choose another name.')
    _require_readable(context, block)
    return block


def _changed(
    present: Block | None,
    name: str,
    instructions: str | None,
    files: Mapping[str, str],
    removed_files: list[str],
) -> Skill:
    """Return the skill after the change. Raises Invalid, NotFound.

    After a push, the present text may violate the format. A change can repair it.
    """
    if instructions is None and present is None:
        raise Invalid(f'There is no skill "{name}" to change. Give its instructions.')
    (_, content), *parts = parts_of(present.value if present else "")
    kept = dict(parts)
    for path in removed_files:
        if kept.pop(path, None) is None:
            raise NotFound(f'The skill "{name}" has no file "{path[:80]}".')
    if instructions is not None:
        content = instructions
    return make_skill(content, {**kept, **files}, name=name)


def _require_no_spill(context: ToolContext, present: Block | None, changed: Skill) -> None:
    """Raise Forbidden if the skill would copy a text with a stricter egress policy."""
    before = present.value if present else ""
    added = changed_piece(before, changed.text)
    source = context.clearance.spills(added, present.egress if present else None)
    if source:
        raise Forbidden(
            f"Nothing was proposed: this repeats {source}, whose egress policy allows fewer "
            "destinations than the skill. Leave it out."
        )


async def _opened(context: ToolContext, name: str) -> tuple[Block, Skill]:
    """Return a skill of the conversation. Raises NotFound, Forbidden, Invalid."""
    label = label_of(name)

    def read(tx: Transaction) -> Block | None:
        listed = skill_blocks(tx, context.state).get(label)
        return blocks.labelled(tx, listed.block.chain_id, label) if listed else None

    block = await context.store.read(read)
    if block is None:
        raise NotFound(f'There is no skill "{name}" here. The section <skills> lists them.')
    _require_readable(context, block)
    context.quoted.is_untrusted |= block.is_untrusted
    return block, parse_skill(block.value, name)


def _require_readable(context: ToolContext, block: Block) -> None:
    """Raise Forbidden if the turn's model may not see the skill."""
    name = name_of(block.label)
    if not context.may_read(f"skill:{name}", block.egress, block.value):
        raise Forbidden(f'The skill "{name}" may not be shown to this model, by its egress policy.')


def _file_names(skill: Skill) -> str:
    return ", ".join([SKILL_FILE, *sorted(skill.files)])


TOOLS = (
    ServerTool(open_skill, "letta_builtin", is_read_only=True, runs_in_parallel=True),
    ServerTool(run_skill_script, "letta_builtin", acts_outside=True, brings_untrusted=True),
    # The tool stores its proposal in a separate transaction.
    ServerTool(propose_skill, "letta_builtin", acts_outside=True, stays_here=True),
)
