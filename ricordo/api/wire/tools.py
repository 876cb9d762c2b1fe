"""Tools and their rules on the wire."""

from typing import Any

from ricordo.domain.tool import Tool, ToolRule


def tool_to_wire(tool: Tool) -> dict[str, Any]:
    """A tool."""
    return {
        "id": tool.id,
        "name": tool.name,
        "tool_type": tool.tool_type,
        "description": tool.description,
        "source_type": tool.source_type,
        "source_code": tool.source_code,
        "json_schema": tool.json_schema,
        "args_json_schema": None,
        "return_char_limit": tool.return_limit,
        "default_requires_approval": tool.needs_approval,
        "enable_parallel_execution": tool.runs_in_parallel,
        "tags": list(tool.tags),
        "metadata_": tool.metadata,
        "pip_requirements": None,
        "npm_requirements": None,
        "project_id": None,
        "created_by_id": tool.created_by,
        "last_updated_by_id": tool.updated_by,
    }


def rule_to_wire(rule: ToolRule) -> dict[str, Any]:
    """A tool rule."""
    return {"tool_name": rule.tool_name, "type": rule.type, "prompt_template": rule.prompt_template, **rule.options}
