"""What a store promises, tried on both of them; and what can happen to a file."""
