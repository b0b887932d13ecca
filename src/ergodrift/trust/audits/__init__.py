"""Audits: rates of groups in logged predictions, their differences and ratios, with intervals for dependent rows."""
