"""The path by which a request is routed."""

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Return the request's path below the prefix of a proxy or of an outer app."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and f"{path}/".startswith(f"{root}/"):
        return path.removeprefix(root)
    return path
