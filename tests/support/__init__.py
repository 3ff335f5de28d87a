"""Providers and histories for tests: nothing here is shipped."""
