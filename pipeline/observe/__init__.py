"""What a run tells of itself: ledger, metrics, live view, logs."""
