"""The pure heart: a history goes in, a view comes out. Nothing here waits, records or fails open."""
