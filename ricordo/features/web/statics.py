"""The styles and scripts of the pages, which anybody may load.

Browsers keep them: their addresses have a hash of their content.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files

from fastapi import Response

from ricordo.api.routing import Routes, needs
from ricordo.errors import NotFound
from ricordo.features.web import STATIC, TYPES

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
    if name not in TYPES:
        raise NotFound(f"There is no file {name[:80]}.")
    return files("ricordo.features.web").joinpath("static", name).read_bytes()


@cache
def address(name: str) -> str:
    """Return the path of a file, with a hash of its content."""
    return f"{STATIC}/{name}?v={sha256(content(name)).hexdigest()[:12]}"
