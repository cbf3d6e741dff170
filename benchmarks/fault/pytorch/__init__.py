"""The corpus in PyTorch: its models, and what a fault does to them."""
