"""Studies that no user calls: run from a checkout, not part of the package."""
