"""Running a server: ledger, traces, audit log, backups, moves between databases, administration."""

PARTS = ("admin", "audit_log", "backups", "ledger", "move", "otel", "traces")
REQUIRES = ("identity",)
