"""Gives every process that finds this on its path an accelerator."""

from tests import elsewhere

libraries = elsewhere.install()
