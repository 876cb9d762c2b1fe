"""Settings of the audit log."""

from ricordo.setting_types import FeatureSettings, about


class AuditLogSettings(FeatureSettings):
    """The time for which the audit log is kept."""

    audit_log_days: int = about(
        "Days after which rows of the audit log are deleted.", 365, ge=1, le=36_500
    )
