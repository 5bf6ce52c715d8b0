"""From tables and figures to reports: PDF and HTML of one paper, and of the suite. No torch here."""

from ddrl.report.build import pdf_bytes, read_tables, rebuild, write_report

__all__ = ["pdf_bytes", "read_tables", "rebuild", "write_report"]
