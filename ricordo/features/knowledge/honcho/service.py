"""Honcho's official client, and its answers about users.

The client gets its settings from ours, and its errors are converted to ours.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from ricordo.errors import Invalid, Unavailable
from ricordo.features.knowledge.honcho.options import HonchoSettings

_SECONDS = 60.0


def is_on() -> bool:
    return HonchoSettings.current().is_on


async def answer(user_id: str, question: str) -> str | None:
    """Return Honcho's answer about the user; None if it knows nothing.

    Args:
        user_id: The user's id, which is the name of the peer at Honcho.
        question: The question about the user.

    Raises:
        Unavailable: The client is not installed, or Honcho is not reached.
        Invalid: Honcho refuses.
    """
    async with connected() as honcho:
        peer = await honcho.aio.peer(user_id)
        reply = await peer.aio.chat(question)
    return str(reply) if reply else None


@asynccontextmanager
async def connected() -> AsyncIterator[Any]:
    """Open Honcho's client.

    Raises Unavailable if the client is not installed or Honcho is not reached, and Invalid if
    Honcho refuses.
    """
    options = HonchoSettings()
    try:
        module: Any = await asyncio.to_thread(import_module, "honcho")
        errors: Any = await asyncio.to_thread(import_module, "honcho.http.exceptions")
    except ImportError:
        raise Unavailable(
            'Honcho needs its client. Install it: pip install "ricordo[honcho]"'
        ) from None
    key = options.honcho_api_key
    honcho = module.Honcho(
        base_url=options.honcho_url,
        environment=options.honcho_environment,
        workspace_id=options.honcho_workspace_id,
        api_key=key.get_secret_value() if key else None,
        timeout=_SECONDS,
        # No retries by the client: the job repeats a request only after it has checked whether the
        # first one arrived.
        max_retries=0,
    )
    http = honcho._async_http_client  # the client itself cannot be closed
    try:
        yield honcho
    except errors.HonchoError as error:
        status = error.status
        if 400 <= status < 500 and status not in (408, 429):
            raise Invalid(
                f"Honcho at {options.shown} refuses ({status}). Check RICORDO_HONCHO_API_KEY and "
                "the workspace."
            ) from None
        raise Unavailable(
            f"Honcho at {options.shown} does not answer ({type(error).__name__})."
        ) from None
    finally:
        await http.close()
