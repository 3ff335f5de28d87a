"""A seeded campaign against the package: random use, processes that share a record, hostile texts and a soak."""
