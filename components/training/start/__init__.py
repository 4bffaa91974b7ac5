"""Runs that begin from checkpoints of others: forks, and merges of several.

origins  the checkpoints that `training.start` names, and whether a run may begin from them
copying  a checkpoint's files into another run
merging  the mean of several checkpoints
begin    the run's first checkpoint, made of them
making   the config and the folder of such a run
"""
