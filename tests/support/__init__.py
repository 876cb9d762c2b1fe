"""What several tests share: builders of values, a clock that tests set, a counter of SQL statements."""
