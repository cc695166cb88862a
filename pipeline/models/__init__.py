"""Owns models as files: which are known, where they lie, how they are fetched and checked. Runs none of them."""
