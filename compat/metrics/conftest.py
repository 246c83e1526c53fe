"""The server of the package for Python, and Prometheus's own tools."""

pytest_plugins = ["forebay.testing"]
