"""Claims and cells: tests on our runs beside published numbers, and what stands between them."""
