"""Networks in PyTorch (Reference) and as somebody wrote them anew in PyTorch (Candidate), one family in each file."""
