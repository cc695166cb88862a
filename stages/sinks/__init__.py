"""Where messages to the outside go."""
