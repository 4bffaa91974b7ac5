"""Corpus -> tokens -> Parquet shards and a manifest; the sample order; the loader.

Public modules: `step` (makes a data set), `dataset` (opens one), `order` (which block is which sample), `loader`
(batches for a rank), `manifest` (what a data set states about itself). The rest is theirs. No torch anywhere.
"""
