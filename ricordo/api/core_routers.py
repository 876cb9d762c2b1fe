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
    # Search comes early: each route that is tried before it takes time, which matters for a short
    # request.
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
# A block's label may contain slashes. So routes with a fixed part after the label are matched
# before the label alone, and features' routes before both.
LABEL_ROUTERS = (proposals.router, users.router)
