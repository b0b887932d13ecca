"""All tests run in float64; those about float32 say so themselves."""

import jax

jax.config.update("jax_enable_x64", True)
