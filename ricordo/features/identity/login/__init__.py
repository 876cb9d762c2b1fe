"""Login with an OpenID Connect provider.

A browser gets a session of twelve hours in a cookie, with the role user. A guardian
keeps that role.
"""
