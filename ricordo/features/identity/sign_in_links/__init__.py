"""Sign-in links: invitations of administrators, and logins by e-mail.

Both are one-time links that are bound to one user and open a browser's session.
"""
