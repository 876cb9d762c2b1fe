"""The route, for callers whose keys may read agents."""

from ricordo.api.models.base import ResponseModel
from ricordo.api.routing import Routes
from ricordo_countdown.counting import days_until

router = Routes(prefix="/v1/countdown", tags=["countdown"], scope="agents")


class CountdownResponse(ResponseModel):
    """The days until a day; negative if it is over."""

    day: str
    days: int


@router.get("/{day}", response_model=CountdownResponse)
async def count_days(day: str) -> dict[str, str | int]:
    """Count the days until a day, written like 2027-06-30."""
    return {"day": day, "days": days_until(day)}
