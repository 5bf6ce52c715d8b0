"""Decides who may pull, insert and sample when; runs the roles. It knows no algorithm."""
