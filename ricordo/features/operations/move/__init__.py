"""Move all data to another database: `ricordo db migrate-to`."""
