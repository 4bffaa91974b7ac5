"""Checkpoints: there or not there, readable under any layout, no pickle anywhere."""
