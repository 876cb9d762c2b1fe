"""Ricordo: a self-hosted server for AI agents with memory that belongs to people.

`open` runs a server inside a program. `memory` lets a program read and write users' blocks.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

# The server is imported when it is opened, so that commands and clients start fast.
if TYPE_CHECKING:
    from letta_client import AsyncLetta, Letta

    from ricordo import memory as memory
    from ricordo.llm.chat import ChatModel, Embedder

__all__ = ["__version__", "memory", "open", "open_async"]
__version__ = "0.1.0"


def open(
    folder: str | PathLike[str],
    *,
    models: "Sequence[ChatModel | Embedder]" = (),
    **settings: Any,
) -> "AbstractContextManager[Letta]":
    """Run a server in this process, without a port, and provide its client.

    The client is an official `letta-client` that acts as the server's administrator. The server
    stops at the end of the `with` block, after running turns have had time to finish.

    Args:
        folder: The data folder. It is created if it does not exist.
        models: Additional models and embedders that your program implements.
        **settings: Settings by name, such as `model="openai/gpt-5"`. Other settings come from the
            environment and `.env`, as for `ricordo serve`.

    Raises:
        Conflict: Another server uses the folder.
        Invalid: A setting is wrong.
        Unavailable: The database or the secret key cannot be used.
        Unsupported: The package letta-client is not installed.
    """
    opened: AbstractContextManager[Letta] = import_module("ricordo.embedded").open_client(
        folder, models, settings
    )
    return opened


def open_async(
    folder: str | PathLike[str],
    *,
    models: "Sequence[ChatModel | Embedder]" = (),
    **settings: Any,
) -> "AbstractAsyncContextManager[AsyncLetta]":
    """Run a server in the running event loop, and provide its client.

    It takes the same arguments as `open`, and raises the same errors.
    """
    opened: AbstractAsyncContextManager[AsyncLetta] = import_module(
        "ricordo.embedded"
    ).open_async_client(folder, models, settings)
    return opened


def __getattr__(name: str) -> Any:
    if name == "memory":
        return import_module("ricordo.memory")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
