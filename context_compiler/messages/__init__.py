"""Messages of a host, read: items, turns, standing instructions, and the smaller forms they take in a view."""
