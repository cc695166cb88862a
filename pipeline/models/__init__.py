"""Models as files: which are known, where they lie, how they are fetched, looked into, tried on pictures, quantised."""
