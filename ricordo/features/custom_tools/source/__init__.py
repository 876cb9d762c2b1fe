"""Tools made from source code, which agents call and the sandbox runs."""
