"""Entity tags of blocks (RFC 9110, §13).

With them, a reader does not get the same answer twice, and a writer only overwrites the version
that it has read. A tag is `"<version id>.<count of writes>.<digest of the answer>"`. The first two
parts identify the text and the settings that a write would replace. `If-Match` compares only these
two, since the digest depends on the format of the answer. The version id alone is sufficient too.
"""

import hashlib
import re
from typing import Annotated

from fastapi import Header, Response

from ricordo.domain.block import Block
from ricordo.errors import PreconditionFailed

IfMatch = Annotated[
    str | None,
    Header(description="Write only if this is still the block's ETag or version."),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        description='For reads: the ETag that you have. For writes: "*" writes only if the block does not '
        "exist."
    ),
]
_TAG = re.compile(r'(?:W/)?"([^"]*)"')
# A weak tag, which a proxy may have made, does not permit a write.
_STRONG_TAG = re.compile(r'(?<!W/)"([^"]*)"(?=\s*(?:,|$))')


def tagged(
    block: Block, content: bytes, media_type: str, if_none_match: str | None = None
) -> Response:
    """Return the answer with its tag. If the caller has this tag, return 304 without a body.

    Args:
        block: The block, for its version.
        content: The body of the answer.
        media_type: The media type of the body.
        if_none_match: The header of the request: tags that the caller has, or "*"; None without the
            header.
    """
    digest = hashlib.blake2b(content, digest_size=6).hexdigest()
    tag = f"{_version_of(block)}.{digest}"
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if if_none_match is None:
        known_tags = []
    else:
        known_tags = _tags(if_none_match, _TAG)
    if tag in known_tags or (if_none_match or "").strip() == "*":
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


def require_match(
    block: Block | None, if_match: str | None, if_none_match: str | None = None
) -> None:
    """Raise PreconditionFailed if the block does not have the version that the caller expects.

    Args:
        block: The stored block; None if it does not exist.
        if_match: The header of the request, or None without it. It lists tags or version ids, and
            the block must have one of them. "*" matches any existing block.
        if_none_match: The header of the request: tags that the block may not have, or "*" to refuse
            any existing block; None without the header.

    Raises:
        PreconditionFailed: One of the two conditions is false.
    """
    if if_none_match is not None and block is not None and _names(if_none_match, block, _TAG):
        raise PreconditionFailed(
            f'A block "{block.label}" already exists. Read it, or leave If-None-Match out.'
        )
    if if_match is None:
        return
    if block is None:
        raise PreconditionFailed(
            "The block that If-Match names does not exist. Leave If-Match out to create it."
        )
    if not _names(if_match, block, _STRONG_TAG):
        raise PreconditionFailed(
            f'Block "{block.label}" changed since you read it. Read it again and retry.'
        )


def strong_tags(header: str) -> list[str]:
    """Return the tags of If-Match without their quotes and without weak tags.

    Args:
        header: The header's value. A tag without quotes counts too, since many clients send the
            version so; "*" is returned as a tag.
    """
    return _tags(header, _STRONG_TAG)


def _tags(header: str, pattern: re.Pattern[str]) -> list[str]:
    if '"' in header:
        return pattern.findall(header)
    return [tag.strip() for tag in header.split(",")]


def _names(tags: str, block: Block, pattern: re.Pattern[str]) -> bool:
    if tags.strip() == "*":
        return True
    versions = {
        tag.rsplit(".", 1)[0] if tag.count(".") == 2 else tag for tag in _tags(tags, pattern)
    }
    head = block.head.hex() if block.head else ""
    return bool(versions & {_version_of(block), head})


def _version_of(block: Block) -> str:
    head = block.head.hex() if block.head else "none"
    return f"{head}.{block.version}"
