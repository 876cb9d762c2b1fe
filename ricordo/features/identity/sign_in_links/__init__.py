"""Sign-in links: invitations of administrators, and logins by e-mail.

Both are one-time links, bound to one user, that open a browser's session.
"""
