"""Measuring campipe on this machine: how near it comes to what its parts can do, and how many streams it carries."""
