"""How messages and pixels travel between processes."""
