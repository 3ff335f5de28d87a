"""Compile a history into a view. Except for the call of a model, nothing here waits, records or fails open."""
