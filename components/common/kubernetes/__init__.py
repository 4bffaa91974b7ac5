"""Kubernetes: the objects of a run as plain mappings, and the one client that talks to a cluster."""
