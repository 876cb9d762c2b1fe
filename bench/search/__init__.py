"""What searching takes where much is kept: one agent and one archive with very many rows, beside a million rows of others."""
