"""A user's memory on the command line: blocks, proposals, history and blame."""

from ricordo.plugins import Commands


class ReviewPlugin:
    def commands(self) -> list[Commands]:
        return [Commands("memory", "ricordo.features.memory_care.review.cli")]


plugin = ReviewPlugin()
