"""Gives every process that finds this on its path an accelerator."""

from tests.helpers import elsewhere

libraries = elsewhere.install()
