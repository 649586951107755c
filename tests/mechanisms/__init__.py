"""Mechanisms against slow definitions and exact enumerations."""
