"""Parse the host's messages into items and turns, and build the shortened forms that a view uses."""
