"""Generates the pages of the documentation that follow from the code, the papers and the committed results."""
