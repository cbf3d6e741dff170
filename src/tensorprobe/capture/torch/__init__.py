"""Capture for PyTorch: with the face `tensorprobe.pytorch`, the only code that imports torch."""
