"""Whether a machine with GPUs computes what it should, and how fast: `brctc gpu-check`."""
