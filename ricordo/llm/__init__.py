"""Models: one protocol, two doors to providers, a scripted model, and the librarian that needs no key and no network."""
