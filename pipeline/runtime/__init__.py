"""The dispatcher with its pure neighbours, the workers around it, their supervision, and the way out to the sinks."""
