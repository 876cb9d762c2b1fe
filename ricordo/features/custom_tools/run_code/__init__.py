"""The tools `run_code` and `run_code_with_tools`."""
