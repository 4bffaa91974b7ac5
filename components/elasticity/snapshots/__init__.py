"""Snapshots as the agents see them: which machine holds what, copies, and which one to go on from."""
