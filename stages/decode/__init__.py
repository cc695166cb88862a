"""Frames of recordings and live cameras into slots: sources, their clocks and faults, and the stages around them."""
