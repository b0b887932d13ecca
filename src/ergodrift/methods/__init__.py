"""Schedules, estimators, the two update rules, the named algorithms, averages."""
