"""Reports of one paper and of the suite, as PDF and HTML, from tables and figures. No torch here."""

from ddrl.report.build import pdf_bytes, read_tables, rebuild, write_report

__all__ = ["pdf_bytes", "read_tables", "rebuild", "write_report"]
