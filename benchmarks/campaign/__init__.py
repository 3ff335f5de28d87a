"""A seeded campaign against the package: random use, kills, processes, disk faults, hostile texts and a soak."""
