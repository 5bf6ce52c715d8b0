"""From curves to evidence: tables, verdicts and figures. No torch here, and no pandas in this file."""
