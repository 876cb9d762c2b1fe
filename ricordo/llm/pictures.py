"""Which pictures a provider can be shown. One it cannot read would make it refuse the whole transcript, turn after turn."""

import base64
from dataclasses import replace
from urllib.parse import urlsplit

from ricordo.domain.message import ImagePart

UNREADABLE = "(a picture that cannot be read)"
# The kinds that all providers take.
_MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_INLINE = "data:"
_OTHER_NAMES = {"image/jpg": "image/jpeg"}


def readable_picture(picture: ImagePart) -> ImagePart | None:
    """The picture as providers take it; None where its data, its kind or its address can be read by none of them."""
    if picture.url is not None and picture.url.startswith(_INLINE):
        kind, _, data = picture.url.removeprefix(_INLINE).partition(";base64,")
        return readable_picture(replace(picture, media_type=kind, data=data, url=None))
    if picture.url is not None:
        return picture if _is_address(picture.url) else None
    media_type = (picture.media_type or "").partition(";")[0].strip().lower()
    media_type = _OTHER_NAMES.get(media_type, media_type)
    data = "".join((picture.data or "").split())
    if media_type not in _MEDIA_TYPES or not _is_base64(data):
        return None
    return replace(picture, media_type=media_type, data=data)


def _is_base64(data: str) -> bool:
    try:
        return bool(base64.b64decode(data, validate=True))
    except ValueError:
        return False


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)
