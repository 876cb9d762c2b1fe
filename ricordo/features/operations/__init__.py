"""Operating a server: ledger, traces, audit log, backups, moves of databases, administration."""

from ricordo.domain.scope import ADMIN
from ricordo.plugins import Commands, Feature, PluginPage

feature = Feature(
    requires=("identity",),
    settings=("ricordo.features.operations.audit_log.options:AuditLogSettings",),
    tables=("ricordo.features.operations.audit_log.tables:TABLES",),
    routes=(
        "ricordo.features.operations.admin.routes",
        "ricordo.features.operations.admin.metrics",
        "ricordo.features.operations.audit_log.routes",
        "ricordo.features.operations.audit_log.pages",
        "ricordo.features.operations.backups.routes",
        "ricordo.features.operations.backups.pages",
        "ricordo.features.operations.ledger.routes",
        "ricordo.features.operations.traces.routes",
    ),
    middleware=(
        "ricordo.features.operations.audit_log.recorder:AuditRecorder",
        "ricordo.features.operations.otel:trace_requests",
    ),
    jobs=(
        "ricordo.features.operations.audit_log.service:EXPIRY",
        "ricordo.features.operations.backups.jobs:HANDLERS",
    ),
    after_turn=("ricordo.features.operations.admin.state:note_turn",),
    open="ricordo.features.operations.admin.state:open_operations",
    pages=(
        PluginPage("Audit log", "/ui/audit-log", (ADMIN,)),
        PluginPage("Backups", "/ui/backups", (ADMIN,)),
    ),
    commands=(
        Commands(
            "audit",
            "ricordo.features.operations.audit_log.cli",
            help="The audit log of changes and refused requests.",
        ),
        Commands(
            "",
            "ricordo.features.operations.backups.cli",
            commands={
                "backup": "Write the whole database into a file.",
                "restore": "Replace the database by a backup.",
                "upgrade": "Bring the database to this version of Ricordo.",
            },
        ),
        Commands(
            "",
            "ricordo.features.operations.ledger.cli",
            commands={"costs": "Show the number of tokens and their cost."},
        ),
        Commands(
            "db", "ricordo.features.operations.move.cli", help="The database: move it to another."
        ),
    ),
)
