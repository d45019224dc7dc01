"""Attention as kernels for TPUs and GPUs."""
