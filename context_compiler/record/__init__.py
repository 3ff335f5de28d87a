"""The record: its values, the `Store` protocol, and the stores that keep it."""
