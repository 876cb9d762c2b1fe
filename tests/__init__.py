"""The tests mirror the tree: ricordo/x/y.py is tested by tests/x/test_y.py."""
