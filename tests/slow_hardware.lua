-- Two devices with attention of their own, so slow that every position a row attends to shows in a step's nanoseconds,
-- also on the tiny model.
return {
  name = "slow_hardware",
  gpus = 2, attention_ranks = 2, hbm_bytes = 1e12, copy_bytes_s = 1e9,
  matmul_flop_s = 1e12, attention_flop_s = 1e9, indexer_flop_s = 1e9, kernels_per_layer = 1,
  launch_ns = 1000, eager_launch_ns = 1000,
}
