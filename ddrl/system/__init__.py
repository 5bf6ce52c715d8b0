"""Files, locks, signals, processes and random streams. Importing these modules imports no torch."""
