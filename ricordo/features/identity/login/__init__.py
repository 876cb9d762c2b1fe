"""Login with an OpenID Connect provider.

A browser gets a session in a cookie. It lasts 30 days if the person chose to stay logged in, else
twelve hours. It has the role user, except that a guardian keeps the role guardian.
"""
