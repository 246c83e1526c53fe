"""The server of the package for Python."""

pytest_plugins = ["forebay.testing"]
