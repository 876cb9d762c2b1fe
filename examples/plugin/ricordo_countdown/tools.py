"""The tool. The model reads its docstring, and its result or its error."""

from ricordo.tools.toolbox import ServerTool, ToolContext
from ricordo_countdown.counting import days_until


async def count_days_until(_context: ToolContext, day: str) -> str:
    """Count the days until a day, such as an exam.

    Args:
        day: The day, like 2027-06-30.
    """
    return f"{days_until(day)} days remain until {day}."


DAYS_UNTIL = ServerTool(count_days_until, "custom", runs_in_parallel=True)
