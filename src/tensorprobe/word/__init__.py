"""What names mean: the words of PyTorch and MindSpore for one operation, layer, argument or module. Data is in JSON."""
