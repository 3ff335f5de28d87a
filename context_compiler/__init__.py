"""Context middleware for Pydantic AI."""
