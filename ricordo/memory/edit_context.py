"""The context of an edit: who edits memory, in which step, and whether the step read untrusted content."""

from collections.abc import Iterable
from dataclasses import dataclass

from ricordo.domain.block import Block
from ricordo.domain.scope import Actor
from ricordo.domain.version import ChangeMetadata, PolicyDecision
from ricordo.memory.schemas import Schemas, no_schemas, require_follows
from ricordo.memory.working_memory import EditReason, MemoryEdit

# A shorter quote could stand anywhere, unless it is all that was said.
_SHORTEST_QUOTE = 8


@dataclass(frozen=True, slots=True)
class EditContext:
    """Who edits, in which step. `said` are the users' messages of this turn, which a quote has to come from.

    `expires_after` is how long a proposal waits, in microseconds (None: for ever). `schemas` are those that blocks may follow.
    """

    author: Actor
    run_id: str | None = None
    step_id: str | None = None
    is_untrusted: bool = False
    said: tuple[str, ...] = ()
    expires_after: int | None = None
    schemas: Schemas = no_schemas

    def require_follows(self, block: Block, value: str) -> None:
        """Raise Invalid where the block's text would follow its schema less than it does."""
        if block.schema_ref:
            require_follows(block.label, block.value, value, self.schemas(block.schema_ref))

    def metadata(self, reasons: Iterable[EditReason], otherwise: str) -> ChangeMetadata:
        """Return the metadata of one change by these calls; `otherwise` is the reason where they gave none."""
        given = list(reasons)
        texts = dict.fromkeys(reason.text.strip() for reason in given if reason.text.strip())
        return ChangeMetadata(
            author=self.author,
            reason="; ".join(texts) or otherwise,
            run_id=self.run_id,
            step_id=self.step_id,
            is_untrusted=self.is_untrusted,
            is_quoted=bool(given) and all(self._said(reason.quote) for reason in given),
        )

    def policy_decision(self, edit: MemoryEdit) -> PolicyDecision:
        decision = self.metadata([edit.reason], "").policy_decision(edit.base.rule)
        return "propose" if decision == "apply" and edit.reason.only_proposes else decision

    def _said(self, quote: str | None) -> bool:
        words = " ".join((quote or "").split())
        if not words:
            return False
        told = [" ".join(text.split()) for text in self.said]
        return words in told or (len(words) >= _SHORTEST_QUOTE and any(words in text for text in told))
