"""Inference devices behind one door."""
