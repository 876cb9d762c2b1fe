"""The stored tools follow what this server can run: new ones are added, changed ones updated, each start."""

from dataclasses import replace

from ricordo.domain.ids import new_id
from ricordo.domain.scope import Scope
from ricordo.domain.tool import Tool
from ricordo.storage import tools
from ricordo.storage.engine.store import Transaction
from ricordo.tools.toolbox import ServerTool, Toolbox


def sync_tools(tx: Transaction, scope: Scope, toolbox: Toolbox) -> None:
    """Bring the stored tools of this organization up to date with the toolbox."""
    tools.lock(tx, scope)  # several servers of one database may start at once
    offered = {tool.name: tool for tool in toolbox}
    stored = tools.by_names(tx, scope, list(offered))
    tools.insert_all(tx, [_new(tx, scope, tool) for name, tool in offered.items() if name not in stored])
    for name, tool in stored.items():
        current = _as_offered(tool, offered[name])
        if current != tool:
            tools.update(tx, replace(current, updated_at=tx.clock.now()))


def _new(tx: Transaction, scope: Scope, offered: ServerTool) -> Tool:
    now = tx.clock.now()
    blank = Tool(
        new_id("tool"), scope.organization_id, offered.name, offered.tool_type, {}, created_at=now, updated_at=now
    )
    return _as_offered(blank, offered)


def _as_offered(tool: Tool, offered: ServerTool) -> Tool:
    schema = offered.schema
    return replace(
        tool,
        tool_type=offered.tool_type,
        json_schema={"name": schema.name, "description": schema.description, "parameters": schema.parameters},
        description=schema.description,
        source_type="python",
        runs_in_parallel=offered.runs_in_parallel,
        tags=(offered.tool_type,),
    )
