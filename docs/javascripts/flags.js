// The options that ask for a layout: of minitrain, and of torchtitan and Megatron-LM as they were in November 2026.
// Names: torchtitan/config/parallelism.py and training.py; Megatron-LM's parallelism guide and its training options.

const AXES = ["dp", "pp", "cp", "tp", "ep"]
const given = (name, value) => `--${name.replaceAll("_", "-")} ${{ yes: "True", no: "False" }[value] ?? value}`

// Like which preset a model is most, and what differs from it.
function nearest(c, models, sizes) {
  const differing = Object.entries(models).map(([name, preset]) => [name, sizes.filter(size => c[size] !== preset[size])])
  return differing.reduce((best, other) => (other[1].length < best[1].length ? other : best))
}

export function minitrain(c, models, sizes) {
  const [preset, differing] = nearest(c, models, sizes)
  const words = [`--preset ${preset}`, ...differing.map(size => given(size, c[size]))]
  words.push(...AXES.filter(name => c[name] > 1).map(name => given(name, c[name])))
  if (c.zero > 0) words.push(`--zero ${c.zero}`)
  if (c.sequence === "yes") words.push("--sequence-parallel")
  if (c.recompute !== "none") words.push(`--recompute ${c.recompute}`)
  if (c.optimizer !== "adamw") words.push(`--optimizer ${c.optimizer}`)
  words.push(`--batch ${c.batch}`, `--microbatches ${c.microbatches}`, `--dtype ${c.dtype}`, "--dry-run")
  return { command: `python -m minitrain.train ${words.join(" ")}`, notes: ["Without --dry-run, and started by torchrun, it trains."] }
}

export function torchtitan(c) {
  const rows = c.batch / c.dp / c.microbatches, notes = []
  const words = [`--parallelism.data_parallel_replicate_degree ${c.zero ? 1 : c.dp}`, `--parallelism.data_parallel_shard_degree ${c.zero ? c.dp : 1}`]
  if (c.zero) words.push(`--parallelism.fsdp_reshard_after_forward ${c.zero === 3 ? "always" : "never"}`)
  if (c.zero === 1) notes.push("ZeRO 1 has no counterpart: FSDP that keeps parameters after forward is nearest, and divides gradients, too.")
  words.push(`--parallelism.tensor_parallel_degree ${c.tp}`)
  if (c.tp > 1 && c.sequence === "no") words.push("--parallelism.no-enable-sequence-parallel")
  words.push(`--parallelism.pipeline_parallel_degree ${c.pp}`)
  if (c.pp > 1) words.push("--parallelism.pipeline_parallel_schedule 1F1B", `--parallelism.num_pp_microbatches ${c.microbatches}`)
  words.push(`--parallelism.context_parallel_degree ${c.cp}`, `--parallelism.expert_parallel_degree ${c.ep}`)
  if (c.experts && c.tp > 1) notes.push("Its experts are on ranks of tp, too, and are not cut by it; ep must be at least tp.")
  words.push(`--training.max_context_length ${c.positions}`)
  words.push(`--training.num_tokens_per_microbatch_per_dp_rank ${rows * c.positions}`)
  words.push(`--training.num_tokens_per_train_step ${c.batch * c.positions}`)
  words.push(`activation-checkpoint:${c.recompute === "full" ? "full" : "none"}`)
  if (c.recompute === "selective") notes.push("Its fused attention computes scores again in any case; its own “selective” keeps products and computes the rest again.")
  notes.push("Until summer 2026 the last was --activation_checkpoint.mode, and a batch was --training.local_batch_size, global_batch_size and seq_len.")
  notes.push("The model is chosen by MODULE and CONFIG.")
  return { command: `./run_train.sh ${words.join(" ")}`, notes }
}

export function megatron(c) {
  const notes = [`dp has no option: it is what tp, pp and cp leave of all ranks, here ${c.dp}.`]
  const words = [`--tensor-model-parallel-size ${c.tp}`]
  if (c.sequence === "yes") words.push("--sequence-parallel")
  words.push(`--pipeline-model-parallel-size ${c.pp}`, `--context-parallel-size ${c.cp}`)
  if (c.cp > 1) words.push("--cp-comm-type p2p")
  words.push(`--expert-model-parallel-size ${c.ep}`)
  if (c.experts) words.push(`--expert-tensor-parallel-size ${c.tp}`)
  if (c.zero) words.push("--use-distributed-optimizer")
  if (c.zero >= 2) words.push("--use-megatron-fsdp", `--data-parallel-sharding-strategy optim_grads${c.zero === 3 ? "_params" : ""}`, "--ckpt-format fsdp_dtensor", "--no-gradient-accumulation-fusion")
  if (c.recompute === "full") words.push("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
  if (c.recompute === "selective") words.push("--recompute-granularity selective")
  words.push(`--micro-batch-size ${c.batch / c.dp / c.microbatches}`, `--global-batch-size ${c.batch}`, `--seq-length ${c.positions}`)
  if (c.dtype === "bfloat16") words.push("--bf16")
  if (c.pp > 1 && c.layers % c.pp) notes.push(`It wants equal stages, and ${c.layers} layers do not divide by ${c.pp}; see --decoder-last-pipeline-num-layers.`)
  notes.push("The model is given by --num-layers, --hidden-size and others.")
  return { command: `torchrun --nproc-per-node ${Math.min(c.node, c.dp * c.pp * c.cp * c.tp)} pretrain_gpt.py ${words.join(" ")}`, notes }
}
