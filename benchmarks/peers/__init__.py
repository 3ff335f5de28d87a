"""One file a peer: each gives `APPROACHES`."""
