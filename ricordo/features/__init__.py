"""The built-in features: each is a folder that can be deleted with its name here, and the server still starts."""

FEATURES: tuple[str, ...] = tuple(
    """
    access_tokens accounts admin agent_files api_docs ask audit audit_log backups batches
    courses custom_tools dolt erasure files formats git groups help honcho imports latex ledger
    letta_extras librarian login mcp mcp_oauth mcp_server memories move notes openai_api
    openwebui otel remotes review run_code schedules tasks teachers templates traces
    tutor_chat typed_memory vector_services web web_tools workspaces
    """.split()
)
