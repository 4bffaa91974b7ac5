"""The tiny job that both train: a model, its batches, and how often it is saved."""

VOCAB, BATCH, SEQUENCE = 400, 16, 64

CONFIG = """\
version: 1
run: recovery
storage: {root}
corpus: "stdlib:asyncio"
tokenizer: {{vocab: 400}}
sharding: {{held_out: 0, workers: 1}}
model: {{layers: 4, dim: 64, heads: 4, kv_heads: 4, hidden: 128, vocab: 400, attention: causal}}
training:
  steps: 1000
  global_batch: 16
  microbatch: 8
  sequence: 64
  schedule: {{decay: constant}}
  layout: {{pp: 1, tp: 1, cp: 1}}
  checkpoint: {{every: {every}, keep: {{last: 2}}}}
elastic: {{timeout: {timeout}}}
resources: {{processes: 2, device: cpu}}
"""
