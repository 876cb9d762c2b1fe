"""The tools that come with Ricordo; they are declared as those of a plugin are."""

from ricordo.tools.builtin import command, facts, memory, patch, recall
from ricordo.tools.builtin.find_tools import find_tools
from ricordo.tools.toolbox import ServerTool

# Older models and scripts of the retired Letta V1 server use the shorter names.
_SHORT_NAMES = {"old_str": "old_string", "new_str": "new_string"}


# The tools that speak, search, archive and edit memory.
TOOLS = (
    ServerTool(recall.send_message, "letta_core"),
    ServerTool(
        recall.conversation_search,
        "letta_core",
        runs_in_parallel=True,
        is_read_only=True,
        searches=frozenset(("messages",)),
    ),
    ServerTool(recall.archival_memory_insert, "letta_core"),
    ServerTool(
        recall.archival_memory_search,
        "letta_core",
        runs_in_parallel=True,
        is_read_only=True,
        searches=frozenset(("archive",)),
    ),
    ServerTool(memory.core_memory_append, "letta_memory_core", edits_memory=True),
    ServerTool(memory.core_memory_replace, "letta_memory_core", edits_memory=True),
    ServerTool(memory.memory_insert, "letta_memory_core", edits_memory=True, aliases=_SHORT_NAMES),
    ServerTool(memory.memory_replace, "letta_memory_core", edits_memory=True, aliases=_SHORT_NAMES),
    ServerTool(command.memory, "letta_memory_core", edits_memory=True, aliases=_SHORT_NAMES),
    ServerTool(patch.memory_apply_patch, "letta_memory_core", edits_memory=True),
    ServerTool(memory.memory_rethink, "letta_sleeptime_core", edits_memory=True),
    ServerTool(memory.memory_finish_edits, "letta_sleeptime_core"),
    ServerTool(
        memory.list_memory_blocks,
        "letta_memory_core",
        runs_in_parallel=True,
        is_read_only=True,
    ),
    ServerTool(
        memory.read_memory_block,
        "letta_memory_core",
        runs_in_parallel=True,
        is_read_only=True,
    ),
    ServerTool(memory.edit_memory_block, "letta_memory_core", edits_memory=True),
    ServerTool(memory.propose_memory_edit, "letta_memory_core"),
    ServerTool(facts.remember, "letta_memory_core", edits_memory=True, is_stored=False),
    ServerTool(facts.correct, "letta_memory_core", edits_memory=True, is_stored=False),
    ServerTool(
        facts.search,
        "letta_core",
        runs_in_parallel=True,
        is_read_only=True,
        searches=frozenset(("messages", "archive")),
        is_stored=False,
    ),
    ServerTool(find_tools, "letta_core", runs_in_parallel=True, is_read_only=True, is_stored=False),
)
