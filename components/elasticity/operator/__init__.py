"""The operator: looks after the PyTorchJobs of runs. Pure cores, a file each; `turn` brings them together, `watching`
and `acting` are what touches the cluster, and `pictures` what touches the storage."""
