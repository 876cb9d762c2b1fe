"""E-mails: digests, and messages of other features, sent by the standard library's SMTP client."""

import asyncio
import ssl
from email.errors import MessageError
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import TYPE_CHECKING

from ricordo.domain.hidden_text import with_marks
from ricordo.errors import Invalid, Unavailable
from ricordo.features.memory_care.notifications.options import NotificationSettings
from ricordo.features.memory_care.notifications.service import Digest

if TYPE_CHECKING:
    import smtplib

_TIMEOUT = 30.0
_PERMANENT = 500
_CHANGES_SHOWN = 8


def compose(digest: Digest, settings: NotificationSettings, job_id: str) -> EmailMessage:
    """Return the digest as an e-mail; the e-mail of a repeated job has the same id.

    Args:
        digest: The digest, with the address.
        settings: The sender, and this server's public address.
        job_id: The id of the job, which becomes that of the e-mail.

    Raises:
        Invalid: as `new_message` does.
    """
    count = digest.waiting
    noun = "suggestion waits" if count == 1 else "suggestions wait"
    others = ", ".join(other.text for other in digest.others)
    subject = f"{count} {noun} for your decision" if count else f"For your decision: {others}"
    message = new_message(digest.address, subject, settings, job_id)
    message.set_content(_text(digest, settings))
    return message


def new_message(
    address_to: str, subject: str, settings: NotificationSettings, message_id: str
) -> EmailMessage:
    """Return an e-mail that has no text yet.

    A line break in an address or a name cannot begin another header.

    Args:
        address_to: The receiver's address alone, without a name.
        subject: The subject; line breaks become blanks.
        settings: The sender.
        message_id: The part of the Message-ID before the sender's host.

    Raises:
        Invalid: for an address that an e-mail cannot have, of the receiver or of the sender.
    """
    # Importing the address parser takes 1% of the time of a server's start, and only servers that
    # send e-mails need it.
    from email.headerregistry import Address

    sender = settings.mail_from or settings.smtp_user or ""
    name, address = parseaddr(sender)
    if "@" not in address:
        raise Invalid("RICORDO_MAIL_FROM names no e-mail address. Set it to the sender's.")
    host = address.rpartition("@")[2]
    message = EmailMessage()
    message["Subject"] = one_line(subject)
    try:
        message["From"] = Address(one_line(name), addr_spec=address)
    except (ValueError, IndexError, MessageError) as error:
        raise Invalid("No e-mail can be sent from the address in RICORDO_MAIL_FROM.") from error
    try:
        message["To"] = Address(addr_spec=one_line(address_to))
    except (ValueError, IndexError, MessageError) as error:
        raise Invalid("No e-mail can be sent to this address. Change it.") from error
    message["Date"] = formatdate()
    message["Message-ID"] = f"<{message_id}@{host}>"
    message["Auto-Submitted"] = "auto-generated"
    return message


async def send(message: EmailMessage, settings: NotificationSettings) -> None:
    """Send the e-mail.

    Args:
        message: The complete e-mail.
        settings: The mail server.

    Raises:
        Invalid: for a permanent refusal.
        Unavailable: for any other failure.
    """
    await asyncio.to_thread(_send, message, settings)


def _send(message: EmailMessage, settings: NotificationSettings) -> None:
    import smtplib  # only servers that send e-mails need it

    try:
        with _connected(settings) as client:
            client.send_message(message)
    except smtplib.SMTPResponseException as error:
        kind = Invalid if error.smtp_code >= _PERMANENT else Unavailable
        raise kind(f"The mail server answered {error.smtp_code}.") from error
    except smtplib.SMTPRecipientsRefused as error:
        codes = {code for code, _ in error.recipients.values()}
        kind = Invalid if min(codes, default=_PERMANENT) >= _PERMANENT else Unavailable
        raise kind("The mail server refuses the address of this user.") from error
    except (smtplib.SMTPException, OSError) as error:
        raise Unavailable(
            f"The mail server cannot be reached, or cannot take the e-mail ({type(error).__name__}). "
            "Check RICORDO_SMTP_HOST, RICORDO_SMTP_PORT and RICORDO_SMTP_SECURITY."
        ) from error


def _connected(settings: NotificationSettings) -> "smtplib.SMTP":
    """Return a client of the mail server. It is logged in if the settings contain a name."""
    import smtplib  # only servers that send e-mails need it

    host, port = settings.smtp_host or "", settings.smtp_port
    context = ssl.create_default_context()
    if settings.smtp_security == "tls":
        client: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_TIMEOUT, context=context)
    else:
        client = smtplib.SMTP(host, port, timeout=_TIMEOUT)
    try:
        if settings.smtp_security == "starttls":
            client.starttls(context=context)
        if settings.smtp_user and settings.smtp_password:
            client.login(settings.smtp_user, settings.smtp_password.get_secret_value())
    except BaseException:
        client.close()
        raise
    return client


def _text(digest: Digest, settings: NotificationSettings) -> str:
    lines = [f"Hello {one_line(digest.user.name)},", ""]
    if digest.entries:
        lines += ["Agents suggest changes of your memory. Nothing changes until you decide.", ""]
    for entry in digest.entries:
        proposal = entry.proposal
        lines.append(f"{proposal.label}, by {one_line(proposal.author.shown_name)}")
        lines += [f"  {line}" for line in entry.changes[:_CHANGES_SHOWN]]
        if proposal.has_hidden_text:
            lines.append("  It has hidden text, shown here as marks.")
        if proposal.reasoning:
            lines.append(f"  Why: {one_line(proposal.reasoning)}")
        if entry.link:
            lines.append(f"  Decide: {entry.link}")
        lines.append("")
    rest = digest.waiting - len(digest.entries)
    if rest > 0:
        lines += [f"{rest} more {'waits' if rest == 1 else 'wait'} for you.", ""]
    for other in digest.others:
        page = f": {settings.public_url}{other.path}" if settings.public_url else "."
        lines += [f"For your decision: {one_line(other.text)}{page}", ""]
    if settings.public_url:
        lines.append(f"All of them: {settings.public_url}")
    if any(entry.link for entry in digest.entries):
        lines.append("Each link works once, for a week, and for you alone: do not pass it on.")
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return at most 500 characters as one line, with marks for those that are not shown."""
    return " ".join(with_marks(text).split())[:500]
