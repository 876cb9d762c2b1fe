"""The only way for tests to use the product's internals.

`server` is the real app over HTTP with the official client, and `http` has short helpers for
requests. `scene` is the app with scripted provider servers. `stage` is one runtime without HTTP,
with a scripted model. `make` builds values and rows with defaults, `stores` has helpers for
databases, `jobs` a worker. Only the tests on the allow-list of `tests/test_architecture.py` import
other parts of the product.
"""
