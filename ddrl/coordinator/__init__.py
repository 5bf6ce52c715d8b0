"""Schedules, parameters and roles of a run: who may act, insert and learn when. No algorithm is known here."""
