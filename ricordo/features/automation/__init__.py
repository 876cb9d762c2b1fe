"""Work at set times and in bulk: schedules and batches."""

from ricordo.plugins import Feature, PluginPage

feature = Feature(
    tables=(
        "ricordo.features.automation.batches.queries:batch_items",
        "ricordo.features.automation.schedules.queries:schedules",
    ),
    routes=(
        "ricordo.features.automation.batches.routes",
        "ricordo.features.automation.schedules.routes",
        "ricordo.features.automation.schedules.pages",
    ),
    jobs=(
        "ricordo.features.automation.batches.jobs:HANDLERS",
        "ricordo.features.automation.schedules.jobs:HANDLERS",
    ),
    pages=(PluginPage("Schedules", "/ui/schedules"),),
)
