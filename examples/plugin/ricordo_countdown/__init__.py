"""Days until a date: a tool for agents, a route for programs, and a setting."""

from ricordo.plugins import Feature

feature = Feature(
    settings=("ricordo_countdown.options:CountdownSettings",),
    tools=("ricordo_countdown.tools:DAYS_UNTIL",),
    routes=("ricordo_countdown.routes",),
)
