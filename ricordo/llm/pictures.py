"""Which pictures a provider can be shown. One it cannot read would make it refuse the whole transcript, turn after turn."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeGuard
from urllib.parse import urlsplit

from ricordo.domain.message import ImagePart, Message, Part, TextPart

UNREADABLE = "(a picture that cannot be read)"
# The kinds that all providers take.
_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_INLINE = "data:"
FETCH_SECONDS = 20.0
MOST_BYTES = 20 * 1024 * 1024
_KEPT = 32

_log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Gets what lies at an address, with its media type; must refuse private addresses itself."""


def readable_picture(picture: ImagePart) -> ImagePart | None:
    """The picture as providers take it; None where its data, its kind or its address can be read by none of them."""
    if picture.url is not None and picture.url.startswith(_INLINE):
        kind, _, data = picture.url.removeprefix(_INLINE).partition(";base64,")
        return readable_picture(replace(picture, media_type=kind, data=data, url=None))
    if picture.url is not None:
        with suppress(ValueError):
            parts = urlsplit(picture.url)
            return picture if parts.scheme in {"http", "https"} and parts.hostname else None
        return None
    media_type = (
        (picture.media_type or "")
        .partition(";")[0]
        .strip()
        .lower()
        .replace("image/jpg", "image/jpeg")
    )
    data = "".join((picture.data or "").split())
    with suppress(ValueError):
        if media_type in _MEDIA_TYPES and base64.b64decode(data, validate=True):
            return replace(picture, media_type=media_type, data=data)
    return None


class PictureCache:
    """Pictures fetched for providers that want them in the request; a few are kept, and one that is gone becomes a note."""

    def __init__(self, fetch: Fetch, seconds: float = FETCH_SECONDS) -> None:
        self._fetch = fetch
        self._seconds = seconds
        self._kept: dict[str, ImagePart] = {}

    async def inline(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages, with no picture at an address left in them."""
        wanted = {
            part.url for message in messages for part in message.parts if _lies_elsewhere(part)
        }
        if not wanted:
            return tuple(messages)
        found = dict(
            zip(wanted, await asyncio.gather(*(self._get(str(url)) for url in wanted)), strict=True)
        )

        def inlined(message: Message) -> Message:
            parts = tuple(
                found[part.url] if _lies_elsewhere(part) else part for part in message.parts
            )
            return message if parts == message.parts else replace(message, parts=parts)

        return tuple(map(inlined, messages))

    async def _get(self, url: str) -> Part:
        if (kept := self._kept.get(url)) is not None:
            return kept
        try:
            async with asyncio.timeout(self._seconds):
                data, media_type = await self._fetch(url)
        except (
            Exception
        ) as error:  # Whatever it is, it is about the picture, and the picture can be done without.
            _log.info("A picture cannot be fetched: %s", type(error).__name__)
            return TextPart(UNREADABLE)
        picture = readable_picture(ImagePart(media_type, data=base64.b64encode(data).decode()))
        if picture is None or len(data) > MOST_BYTES:
            return TextPart(UNREADABLE)
        if len(self._kept) >= _KEPT:
            self._kept.pop(next(iter(self._kept)))
        self._kept[url] = picture
        return picture


def _lies_elsewhere(part: Part) -> TypeGuard[ImagePart]:
    return isinstance(part, ImagePart) and part.url is not None and not part.url.startswith(_INLINE)
