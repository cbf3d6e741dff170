"""What recorded names mean where that is not simply the function of the same name."""
