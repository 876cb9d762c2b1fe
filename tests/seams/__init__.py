"""The one way in for tests: what they make, say, search, propose, approve, kill and count, over the real thing.

`server`: the real app over HTTP, with the official client. `http`: short words for what is sent there. `stage`: one runtime without
HTTP, whose model says what a script tells it to. `make`: values and rows with defaults. `stores`: what tests do with a database.
`jobs`: a worker. A test outside the allow-list of `tests/test_architecture.py` gets all that it needs of the product here.
"""
