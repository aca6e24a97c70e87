-- Four NVIDIA GB300 GPUs of one NVL72 serving a replica with tensor parallelism (TP4). Nothing here was measured by us:
-- data sheets and published points only, efficiencies are assumptions.
return {
  name = "gb300-tp4",
  gpus              = { 4,       "TP4, the published low-latency configuration" },
  hbm_bytes         = { 288e9,   "data sheet" },
  copy_bytes_s      = { 7.2e12,  "assumption: 0.9 of the data sheet's 8 TB/s, the share an H200 reaches" },
  matmul_flop_s     = { 4000e12, "assumption: FP8 dense, 0.8 of the data sheet's 5 PFLOP/s" },
  attention_flop_s  = { 1450e12, "published sparse prefill attention on B200: 1450 TFLOP/s" },
  indexer_flop_s    = { 4000e12, "as the FP8 matrix rate" },
  memory_efficiency = { 0.5,     "assumption" },
  matmul_efficiency = { 0.6,     "assumption" },
  attention_efficiency = { 1,    "the rate above is of the kernel itself" },
  indexer_efficiency   = { 0.5,  "assumption: the ratio that the H200's published rate has to its FP8 rate" },
  kernels_per_layer = { 18,      "15-20 kernels a layer without mega-kernels" },
  launch_ns         = { 1000,    "assumption: as on Hopper" },
  eager_launch_ns   = { 6500,    "assumption: as on Hopper" },
  step_host_ns      = { 50000,   "assumption: planning, input copies and sampling" },
  allreduce_ns      = { 5000,    "assumption; the published 4.04 ms of a batch-1 step on 4 GB200 need about that" },
  link_bytes_s      = { 700e9,   "assumption: 0.8 of NVLink 5's 900 GB/s per direction" },
  host_link_bytes_s = { 350e9,   "NVLink-C2C, assumption" },
}
