"""What was recorded, as plain rows, and the rows laid out as text or JSON."""
