"""The one way in for tests.

What they make, say, search, propose, approve, kill and count, over the real thing.

`server` is the real app over HTTP, with the official client, and `http` short words for what is
sent there. `scene` is the app in front of scripted provider servers. `stage` is one runtime without
HTTP, whose model says what a script tells it to. `make` has values and rows with defaults, `stores`
what tests do with a database, `jobs` a worker. A test outside the allow-list of
`tests/test_architecture.py` gets all that it needs of the product here.
"""
