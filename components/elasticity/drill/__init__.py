"""Drills: a run is disturbed again and again, and what it recorded tells whether anything was lost.

`plan` and `judging` are pure: seeds to faults, records to figures and verdicts. `conduct` does a drill at a `Site`,
which is `processes` of this machine or `pods` of a cluster.
"""
