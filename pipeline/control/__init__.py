"""How a running engine is told to change: what a change is, the local socket, the watched files."""
