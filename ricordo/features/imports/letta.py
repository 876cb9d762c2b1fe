"""Agents of the retired Letta V1 server, from its database: with memory, messages, archives, tools, folders and users.

Each thing is taken in one transaction that notes it, messages and passages in batches; ids are kept, or made of those there. So
an import that was killed goes on at its next run. What was taken is left alone from then on, since it may have changed here.
"""

from typing import Any

from ricordo.domain.job import Report
from ricordo.domain.scope import Scope
from ricordo.errors import Invalid, NotFound
from ricordo.features.accounts.queries import attach_block
from ricordo.features.imports import queries
from ricordo.features.imports.letta_agents import take_agents
from ricordo.features.imports.letta_run import SOURCE, LettaRun
from ricordo.features.imports.letta_shared import take_archives, take_blocks, take_folders, take_tools, take_users
from ricordo.features.imports.letta_tables import LettaTables
from ricordo.features.imports.queries import Outcome
from ricordo.runtime import Runtime
from ricordo.storage import blocks
from ricordo.storage.engine.store import Transaction

_COUNTED = ("identities", "tools", "sources", "files", "archives", "archival_passages", "agents", "messages")
# Tables of which nothing is taken, and why.
_LEFT_OUT = {
    "groups": "there are no groups of agents here; the agents of groups are taken",
    "mcp_server": "connect MCP servers here, then give agents their tools",
    "providers": "enter keys of providers here",
    "sandbox_configs": "tools run in this server's own sandbox",
    "prompts": "there is no list of prompts here",
    "blocks_conversations": "an agent's blocks are seen in all of its conversations",
    "jobs": "they are records of work that has ended",
    "runs": "they are records of turns; what was said in them is taken",
    "steps": "they are records of turns; what was said in them is taken",
}


async def import_letta(
    runtime: Runtime,
    scope: Scope,
    letta: LettaTables,
    report: Report,
    *,
    model: str | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """Take what was not taken yet, with `model` for every agent if given; returns the report. Raises Invalid, Unavailable."""
    run = LettaRun(runtime, scope, letta, report)
    await run.begin(_COUNTED)
    held = sorted({str(row["organization_id"]) for row in await run.rows("agents", "organization_id")})
    if len(held) > 1:
        raise Invalid(f"The database has agents of {len(held)} organizations. Name one: --organization {held[0]}")
    await take_users(run)
    await take_tools(run)
    await take_folders(run)
    await take_archives(run)
    await take_agents(run, await take_blocks(run), model=model, key=key)
    await _attach_blocks(run)
    for table, reason in _LEFT_OUT.items():
        if count := await run.count(table):
            run.refused.left_out += [(table.replace("_", " "), "", reason)] * count
    await runtime.store.write(lambda tx: queries.note_refused(tx, scope, SOURCE, run.refused))
    return await runtime.store.read(lambda tx: queries.report_of(tx, scope.organization_id, SOURCE))


async def _attach_blocks(run: LettaRun) -> None:
    for row in await run.rows("identities_blocks", "identity_id block_id", order="identity_id block_id"):
        block_id, user_id = run.id("block", row["block_id"]), run.users.get(row["identity_id"])

        def attach(tx: Transaction, out: Outcome, block_id: str = block_id, user_id: str | None = user_id) -> None:
            if user_id is None:
                raise NotFound("its user was not taken")
            blocks.get(tx, run.scope, block_id)
            attach_block(tx, block_id, user_id)
            out.take("blocks of users")

        await run.once(f"{row['identity_id']}/{row['block_id']}", "blocks of users", block_id, attach)
