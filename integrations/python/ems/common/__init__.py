"""Drop-in surface: what callers import from ems.common."""
