"""The host side: capability, history processor and one-shot views; everything that waits, records or fails open."""
