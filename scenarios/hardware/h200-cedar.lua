-- Made by `cedar calibrate`: h200 with some figures fitted to logged steps (docs/MODELLED.md).
-- Held out 1/4, seed 1: 3653 steps, mean error 2.29 %, worst 11.29 %.
local fitted = "fitted to runs 1, 2, 3 of h200-agentx.db, 2026-12-01T01:53:09Z;"
  .. " commit a37aba2325c2; flash-e32 on one NVIDIA H200; "

return {
  name = "h200-cedar",
  -- what it is
  gpus                 = { 1, "one GPU serves a replica" },
  attention_ranks      = { 1, "no source given" },
  hbm_bytes            = { 1.41e+11, "data sheet" },
  dollars_hour         = { 0, "no source given" },
  -- memory
  copy_bytes_s         = { 4.3e+12,
    "large device-to-device copy and the best M=1 GEMM of public tables: 4.23-4.3 TB/s" },
  memory_efficiency    = { 0.553, fitted .. "h200 has 0.55" },
  stream_passes        = { 0, "no source given" },
  fused_stream_passes  = { 0, "no source given" },
  -- compute
  matmul_flop_s        = { 7.9e+14, "8192^3 bf16 product on random data, measured 758-790 TFLOP/s" },
  attention_flop_s     = { 4.1e+14, "published sparse decode attention on H800, the same chip: 410 TFLOP/s" },
  indexer_flop_s       = { 7.7e+14,
    "published FP8 index scores on H200, prefill chunk after 128 K: about 770 TFLOP/s" },
  matmul_efficiency    = { 0.4021, fitted .. "h200 has 0.75" },
  attention_efficiency = { 1, "the rate above is of the kernel itself" },
  indexer_efficiency   = { 0.1322, fitted .. "h200 has 1" },
  overlap              = { 0.01, fitted .. "h200 has 1: at its bound, so a term of the model is off" },
  -- launches and host
  kernels_per_layer    = { 18, "15-20 kernels a layer without mega-kernels" },
  fused_kernels_per_layer = { 0, "no source given" },
  side_stream_kernels  = { 0, "no source given" },
  layer_ns             = { 0, "no source given" },
  launch_ns            = { 8.263e-06, fitted .. "h200 has 970: hardly told" },
  eager_launch_ns      = { 6500, "6.5 us per eager launch, measured on one H200" },
  step_host_ns         = { 50000, "assumption: planning, input copies and sampling" },
  -- links
  allreduce_ns         = { 0, "no source given" },
  fused_allreduce_ns   = { 0, "no source given" },
  fused_allreduce_kernels = { 0, "no source given" },
  fused_allreduce_rows = { 0, "no source given" },
  link_bytes_s         = { 1e+12, "no source given" },
  host_link_bytes_s    = { 5.5e+10, "PCIe 5 x16 as usually reached" },
}
