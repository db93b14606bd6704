"""The CTC criteria: inputs, the reference (the oracle), the native CPU core and the Triton kernels."""
