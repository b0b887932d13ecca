"""The compiled loop, its kernels, checkpoints, results and `run`."""
