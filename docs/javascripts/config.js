// Reading a Hugging Face config.json: the calculator's names of a model, and what a reader should know about them.

const KNOWN = ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt2"]
const USUAL = 8192 // tokens in a sequence, where a model could take more

// A whole number of the file; `otherwise` where it is missing or null. Without it, missing is an error.
function whole(config, key, otherwise) {
  const value = config[key] ?? otherwise
  if (value === undefined) throw new Error(`This config.json has no “${key}”, without which the model's size is unknown.`)
  if (!Number.isInteger(value) || value < 0 || value > 2 ** 31 || (value === 0 && otherwise !== 0)) {
    throw new Error(`“${key}” is ${JSON.stringify(value)} in this config.json; a whole number above 0 was expected.`)
  }
  return value
}

function parsed(text) {
  let config
  try {
    config = JSON.parse(text)
  } catch {
    throw new Error("This is no JSON. Paste the whole config.json, from its first { to its last }.")
  }
  if (typeof config !== "object" || config === null || Array.isArray(config)) {
    throw new Error("This is JSON, but no config.json, which begins with { and has names such as “hidden_size”.")
  }
  // A model of text and images has its language model inside.
  return config.text_config instanceof Object && !("hidden_size" in config) ? config.text_config : config
}

function gpt2(config) {
  const hidden = whole(config, "n_embd")
  return {
    layers: whole(config, "n_layer"), hidden, heads: whole(config, "n_head"), kv_heads: whole(config, "n_head"),
    positions: whole(config, "n_positions", config.n_ctx), vocabulary: whole(config, "vocab_size"),
    mlp: "gelu", mlp_hidden: whole(config, "n_inner", 4 * hidden), norm: "layer", biases: "all", qk_norm: "no",
    positions_kind: "learned", tied: config.tie_word_embeddings === false ? "no" : "yes",
  }
}

// Widths of multi-head latent attention, in the order of minitrain.costs.composition.Latent.
function latent(config) {
  const keys = ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
  return keys.map(key => whole(config, key)).join(", ")
}

function llama(config, notes) {
  const hidden = whole(config, "hidden_size"), heads = whole(config, "num_attention_heads"), type = config.model_type
  const most = whole(config, "max_position_embeddings", USUAL), positions = Math.min(most, USUAL)
  const fields = {
    layers: whole(config, "num_hidden_layers"), hidden, heads, positions, vocabulary: whole(config, "vocab_size"),
    kv_heads: whole(config, "num_key_value_heads", heads), mlp: "swiglu", mlp_hidden: whole(config, "intermediate_size"),
    norm: "rms", biases: type === "qwen2" || config.attention_bias ? "qkv" : "none", positions_kind: "rope",
    qk_norm: ["qwen3", "qwen3_moe"].includes(type) ? "yes" : "no", tied: config.tie_word_embeddings ? "yes" : "no",
  }
  if (most > positions) notes.push(`A sequence has ${USUAL.toLocaleString("en-US")} tokens here; the model takes up to ${most.toLocaleString("en-US")}.`)
  if (config.kv_lora_rank) {
    Object.assign(fields, { latent: latent(config), kv_heads: heads, head_size: Math.max(1, Math.floor(hidden / heads)) })
  } else if (config.head_dim) fields.head_size = whole(config, "head_dim")
  if (config.sliding_window && config.use_sliding_window !== false && config.sliding_window < positions) {
    notes.push(`Attention looks at the last ${config.sliding_window} tokens only; here it is counted in full.`)
  }
  if (config.num_nextn_predict_layers) notes.push("Its layers for multi-token prediction are left out.")
  return { ...fields, ...mixture(config, notes) }
}

function mixture(config, notes) {
  const key = ["num_local_experts", "num_experts", "n_routed_experts"].find(name => config[name])
  if (!key) return {}
  if (config.mlp_only_layers?.length) notes.push("All layers are counted with experts, also those of “mlp_only_layers”.")
  return {
    experts: whole(config, key), experts_per_token: whole(config, "num_experts_per_tok"),
    expert_hidden: whole(config, "moe_intermediate_size", config.intermediate_size),
    shared_experts: whole(config, "n_shared_experts", 0), dense_first: whole(config, "first_k_dense_replace", 0),
    mixture_every: whole(config, "decoder_sparse_step", config.moe_layer_freq ?? 1),
    router_bias: config.topk_method === "noaux_tc" ? "yes" : "no",
  }
}

// { fields, notes }; what cannot be read is an Error whose message is a sentence for the reader.
export function readConfig(text) {
  const config = parsed(text), notes = [], type = config.model_type
  if (!KNOWN.includes(type)) {
    const named = type === undefined ? "There is no “model_type”" : `“${type}” is not among the types known here`
    notes.push(`${named} (${KNOWN.join(", ")}), so it is read as ${"n_embd" in config ? "a GPT-2" : "a Llama"}.`)
  }
  const none = { experts: 0, experts_per_token: 1, expert_hidden: 0, shared_experts: 0, mixture_every: 2, dense_first: 0 }
  const fields = { head_size: 0, latent: "", router_bias: "no", ...none, ...("n_embd" in config ? gpt2(config) : llama(config, notes)) }
  if (!fields.head_size) {
    if (fields.hidden % fields.heads) {
      throw new Error(`${fields.heads} heads do not divide a width of ${fields.hidden}, and this config.json has no “head_dim”.`)
    }
    fields.head_size = fields.hidden / fields.heads
  }
  fields.expert_hidden ||= fields.mlp_hidden
  return { fields, notes }
}
