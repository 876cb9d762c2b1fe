"""The routers of the core, in the order in which they are matched."""

from ricordo.api import (
    agents,
    archives,
    block_proposals,
    blocks,
    conversations,
    jobs,
    messages,
    proposals,
    providers,
    runs,
    search,
    server,
    stored_streams,
    tools,
    users,
)

CORE_ROUTERS = (
    server.router,
    agents.router,
    messages.router,
    # Each route that is matched before takes its time: a search is short enough for that to count.
    search.router,
    conversations.router,
    block_proposals.router,
    blocks.router,
    tools.router,
    stored_streams.router,
    providers.router,
    runs.router,
    jobs.router,
    archives.router,
)
# A block's label may hold slashes: what can follow one is matched before the label itself, and
# features before both.
LABEL_ROUTERS = (proposals.router, users.router)
