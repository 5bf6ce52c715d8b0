"""Makes every table of a paper and of the suite."""
