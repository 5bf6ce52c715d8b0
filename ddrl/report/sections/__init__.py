"""The sections of a report, from its tables."""
