"""How far two values are apart, in numbers; many of them at once, in processes of their own."""
