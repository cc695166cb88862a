"""What is tried and reckoned before a run: whether all that it names can be used, and how much memory it will take."""
