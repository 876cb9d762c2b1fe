"""The assignment of test modules to workers, and their order.

Long modules begin first, so that no worker waits for another at the end. Modules that share
something slow to make run on one worker. No test depends on this: any order is correct, only
slower.
"""

from collections.abc import Sequence

import pytest

# Modules that run on one worker, as prefixes of their paths, by the thing that they share.
TOGETHER: dict[str, tuple[str, ...]] = {
    "the OpenAPI document": (
        *(
            f"tests/api/test_{name}.py"
            for name in (
                *(
                    "route_matrix",
                    "routers",
                    "others_writes",
                    "parameters",
                    "bodies",
                    "lists",
                    "wire_gate",
                ),
                *("client_parameters", "openapi", "text_sweep", "guard"),
            )
        ),
        "tests/campaigns/test_fuzz.py",
        "tests/campaigns/test_canaries.py",
        "tests/features/test_two_users.py",
        "tests/features/identity/access_tokens/test_reach.py",
        "tests/features/web/api_docs/",
        "tests/features/web/pages/test_shell.py",
        "tests/features/web/pages/test_home.py",
        "tests/test_docs.py",
    ),
    "a browser": (
        *(
            f"tests/features/web/pages/test_{name}.py"
            for name in ("browser", "browser_actions", "connect", "pictures")
        ),
        "tests/features/files/latex/",
        "tests/features/operations/backups/test_pages.py",
        "tests/features/tutor/teachers/",
        "tests/features/mcp/oauth/",
    ),
    "the providers' libraries": (
        "tests/llm/",
        "tests/features/openai/test_structured.py",
        *(
            f"tests/behaviour/test_{name}.py"
            for name in ("approvals", "as_the_retired_server", "native_agents", "streams")
        ),
    ),
    "services for vectors": ("tests/features/vector_services/", "tests/search/test_pgvector.py"),
    "parsers of files": ("tests/features/files/folders/",),
}
# The other modules that take seconds, as prefixes of their paths, the longest first.
LONG = (
    "tests/test_package.py",
    "tests/campaigns/",
    "tests/features/operations/move/",
    "tests/features/custom_tools/source/",
    "tests/features/custom_tools/run_code/",
    "tests/sandbox/",
    "tests/features/sync/git/",
    "tests/test_patterns.py",
    "tests/features/operations/backups/",
    "tests/features/memory_care/erasure/",
    "tests/storage/",
    "tests/features/operations/admin/",
    "tests/cli/",
    "tests/memory/test_proposals.py",
    "tests/test_troubleshooting.py",
)


def scope_of(nodeid: str) -> str:
    """Return the name of the thing that the test's module shares, or else the module."""
    module = nodeid.partition("::")[0]
    return next((name for name, paths in TOGETHER.items() if module.startswith(paths)), module)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the slowest tests first, and the others in their order."""
    firsts = [*TOGETHER, *LONG]

    def place(item: pytest.Item) -> int:
        scope = scope_of(item.nodeid)
        return next(
            (place for place, first in enumerate(firsts) if scope.startswith(first)), len(firsts)
        )

    return sorted(items, key=place)
