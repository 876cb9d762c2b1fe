"""Commands for a user's memory: blocks, proposals, history and blame."""

from ricordo.plugins import Commands


class ReviewPlugin:
    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.memory_care.review.cli")]


plugin = ReviewPlugin()
