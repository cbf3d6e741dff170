"""The page of a comparison or a run, shown by a server on this machine, with the tensors behind it."""
