"""What a run may lose before it gives up, and which nodes it does without: a ledger that outlives every process."""
