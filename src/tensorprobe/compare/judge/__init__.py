"""Which differences are explained, and what the verdict is: growth of the error from call to call."""
