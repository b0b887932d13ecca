"""What knows nothing of optimisation: pytrees, argument checks, files, precision, compilation, progress."""
