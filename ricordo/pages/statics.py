"""The styles and scripts of the pages, which anybody may load.

Browsers keep them, since the address of each file contains a hash of its content.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import Response

from ricordo.api.routing import Routes, needs
from ricordo.errors import NotFound

STATIC = "/ui/static"
# The files by name, each with its media type.
TYPES = {
    "ui.css": "text/css; charset=utf-8",
    "ui.js": "text/javascript; charset=utf-8",
    "chat.css": "text/css; charset=utf-8",
    "memory.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

router = Routes(include_in_schema=False, open_paths=[f"{STATIC}/{name}" for name in TYPES])


@router.get(STATIC + "/{name}")
@needs()
async def read_static(name: str) -> Response:
    """Return one of the files.

    Its address changes with its content, so a browser may keep it for a year.
    """
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(content(name), headers=headers, media_type=TYPES[name])


@cache
def content(name: str) -> bytes:
    """Return the bytes of a file, which is read once.

    Args:
        name: The name of the file.

    Raises:
        NotFound: `TYPES` has no such file.
    """
    if name not in TYPES:
        raise NotFound(f"There is no file {name[:80]}.")
    return files("ricordo.pages").joinpath("static", name).read_bytes()


@cache
def address(name: str) -> str:
    """Return the path of a file, with a hash of its content.

    Args:
        name: The name of a file in `TYPES`.

    Raises:
        NotFound: There is no such file.
    """
    return f"{STATIC}/{name}?v={sha256(content(name)).hexdigest()[:12]}"
