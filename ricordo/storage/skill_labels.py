"""The condition of SQL that a label is that of a skill."""

from sqlalchemy import ColumnElement, and_, func

from ricordo.domain.block import SKILL_LABEL


def is_skill_label(label: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a label is that of a skill, as `is_skill` decides.

    LIKE ignores case on SQLite; replace() does not.

    Args:
        label: The column with the label.
    """
    return and_(
        label.like(SKILL_LABEL.format("_%")),
        ~label.like(SKILL_LABEL.format("%/%")),
        func.replace(label, "skills/", "") != label,
        func.replace(label, "/SKILL", "") != label,
    )
