"""Networks in PyTorch (Reference) and as somebody ported them to MindSpore (Candidate), one family in each file."""
