"""Invitations and logins by e-mail."""
