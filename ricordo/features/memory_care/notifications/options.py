"""Settings of notifications."""

from typing import Any, Literal

from pydantic import SecretStr

from ricordo.setting_types import Address, FeatureSettings, about


class NotificationSettings(FeatureSettings):
    """The mail server for digests, and the address to which their links lead."""

    public_url: Address | None = about(
        "Address at which people reach this server, for links in e-mails, such as "
        "https://memory.example.org."
    )
    smtp_host: str | None = about(
        "Mail server for digests of waiting proposals, invitations and logins by e-mail. Without "
        "it no e-mail is sent."
    )
    smtp_port: int = about("Port of the mail server.", 587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = about(
        "Encryption of the connection to the mail server.", "starttls"
    )
    smtp_user: str | None = about("Name for the mail server's login, if it needs one.")
    smtp_password: SecretStr | None = about("Password for the mail server's login.")
    mail_from: str | None = about(
        "Sender of e-mails, such as Ricordo <memory@example.org>; by default smtp_user."
    )
    notify_email: Literal["off", "daily", "immediate"] = about(
        "E-mail digests for users, if neither they nor their organization chose.", "off"
    )


def findings(_settings: Any) -> list[str]:
    """Return what `ricordo doctor` warns of: a mail server alone, whose e-mails have no links."""
    settings = NotificationSettings()
    if settings.smtp_host is None or settings.public_url is not None:
        return []
    return [
        "!RICORDO_SMTP_HOST is set, but RICORDO_PUBLIC_URL is not. So e-mails have no links, and "
        "nobody can log in or be invited by e-mail. Set it to the address of this server."
    ]
