"""Workers, their supervision, and the loop that drives them."""
