"""Agents on several machines or pods that start one group of workers together."""
