"""Health checks and Prometheus metrics, for the operator of the server."""
