"""A recorded step, executed again without the program that made it. Needs torch; imports it only when it runs."""
