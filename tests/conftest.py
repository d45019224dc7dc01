"""Every test runs on eight fake CPU devices, and no array is broadcast by accident."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()

import jax  # noqa: E402  (the flags above are read when jax is imported)

jax.config.update("jax_numpy_rank_promotion", "raise")
# The programs are small and many: XLA's optimizer would take half of the time.
jax.config.update("jax_disable_most_optimizations", True)
