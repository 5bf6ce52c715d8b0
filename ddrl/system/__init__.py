"""What programs need of the operating system: files, locks, signals, processes, random streams. No torch at import."""
