"""Settings of the sync with Dolt databases."""

from pydantic import SecretStr, field_validator

from ricordo.setting_types import FeatureSettings, about


class DoltSettings(FeatureSettings):
    """The Dolt database with which the memory of all users is synced."""

    dolt_remote: SecretStr | None = about(
        "Address of a Dolt database with which the memory of all users is synced: "
        "mysql://user:password@host/database or doltlite:///path/file.db (needs the extra `dolt` "
        "or `doltlite`). With {organization} in the address, each organization has a separate "
        "database. Otherwise only the default organization uses it."
    )
    dolt_user_prefix: str = about(
        "Prefix of users' identifiers that rows of Dolt databases leave out, such as open-webui: "
        "for a database of YouLab. If set, users without the prefix have no rows there.",
        "",
    )

    @field_validator("dolt_remote")
    @classmethod
    def _require_dolt(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret and not secret.get_secret_value().startswith(
            ("mysql://", "dolt://", "doltlite://")
        ):
            raise ValueError(
                "must be mysql://user:password@host/database or doltlite:///path/file.db"
            )
        return secret
