"""The tools that ship with Ricordo, offered by the same hook as any plugin's."""

from collections.abc import Sequence

from ricordo.tools.builtin.command import memory
from ricordo.tools.builtin.memory import (
    core_memory_append,
    core_memory_replace,
    memory_finish_edits,
    memory_insert,
    memory_replace,
    memory_rethink,
)
from ricordo.tools.builtin.memory_edits import (
    edit_memory_block,
    list_memory_blocks,
    propose_memory_edit,
    read_memory_block,
)
from ricordo.tools.builtin.patch import memory_apply_patch
from ricordo.tools.builtin.recall import (
    archival_memory_insert,
    archival_memory_search,
    conversation_search,
    send_message,
)
from ricordo.tools.toolbox import ServerTool

# Older models and scripts of the retired Letta V1 server use the shorter names.
_SHORT = {"old_str": "old_string", "new_str": "new_string"}


class BuiltinPlugin:
    """The plugin every Ricordo has."""

    def tools(self) -> Sequence[ServerTool]:
        """Speaking, searching, archiving and editing memory."""
        return (
            ServerTool(send_message, "letta_core"),
            ServerTool(conversation_search, "letta_core", runs_in_parallel=True),
            ServerTool(archival_memory_insert, "letta_core"),
            ServerTool(archival_memory_search, "letta_core", runs_in_parallel=True),
            ServerTool(core_memory_append, "letta_memory_core", edits_memory=True),
            ServerTool(core_memory_replace, "letta_memory_core", edits_memory=True),
            ServerTool(memory_insert, "letta_memory_core", edits_memory=True, aliases=_SHORT),
            ServerTool(memory_replace, "letta_memory_core", edits_memory=True, aliases=_SHORT),
            ServerTool(memory, "letta_memory_core", edits_memory=True, aliases=_SHORT),
            ServerTool(memory_apply_patch, "letta_memory_core", edits_memory=True),
            ServerTool(memory_rethink, "letta_sleeptime_core", edits_memory=True),
            ServerTool(memory_finish_edits, "letta_sleeptime_core"),
            ServerTool(list_memory_blocks, "letta_memory_core", runs_in_parallel=True),
            ServerTool(read_memory_block, "letta_memory_core", runs_in_parallel=True),
            ServerTool(edit_memory_block, "letta_memory_core", edits_memory=True),
            ServerTool(propose_memory_edit, "letta_memory_core"),
        )


plugin = BuiltinPlugin()
