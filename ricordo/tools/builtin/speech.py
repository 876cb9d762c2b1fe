"""The tool by which agents speak that answer only through tools."""

from ricordo.tools.toolbox import ToolContext

SENT = "Sent message successfully."  # a wire fact of the retired Letta V1 server


def send_message(context: ToolContext, message: str) -> str:  # noqa: ARG001 - every tool takes a context
    """Say something to the user. She sees nothing else of what you do.

    Args:
        message: What to say.
    """
    return SENT
