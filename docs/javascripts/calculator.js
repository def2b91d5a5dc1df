// The calculator: a model, machines, the ten fastest layouts, and what one layout holds and takes. Formulas: costs.js.

import { readConfig } from "./config.js"
import { bar, held, parameters, stepFlops, utilization } from "./costs.js"
import { BYTES, MEANING, TIME, bars, group, legend, short, small } from "./drawings.js"
import { megatron, minitrain, torchtitan } from "./flags.js"
import { TIE, divides, divisors, fastest, ties } from "./layouts.js"

const { models, machines, room, fabric } = JSON.parse(document.getElementById("calculator-data").textContent)
const YES = [["no", "no"], ["yes", "yes"]]
const LARGE = ["hidden", "positions", "vocabulary", "mlp_hidden", "expert_hidden", "batch", "tokens", "microbatches"]
// Beyond, looking for layouts would take minutes.
const most = name => (["layers", "experts"].includes(name) ? 2000 : LARGE.includes(name) ? 1e9 : 1e5)
const FIRST = models["7b"]

// name: [label, value at first, options, or null for a number, its least, or "any" if it need not be whole]
const FIELDS = {
  model: ["model", "7b", [...Object.entries(models).map(([name, { title }]) => [name, title]), ["own", "your own"]]],
  layers: ["layers", FIRST.layers, null],
  hidden: ["hidden", FIRST.hidden, null],
  heads: ["heads", FIRST.heads, null],
  kv_heads: ["heads of keys", FIRST.kv_heads, null],
  positions: ["tokens in a sequence", FIRST.positions, null],
  vocabulary: ["vocabulary", FIRST.vocabulary, null],
  mlp: ["MLP", FIRST.mlp, [["gelu", "GELU"], ["swiglu", "SwiGLU"]]],
  mlp_hidden: ["width of the MLP", FIRST.mlp_hidden, null],
  experts: ["experts", FIRST.experts, null, 0],
  head_size: ["size of a head", FIRST.head_size, null],
  norm: ["norms", FIRST.norm, [["layer", "LayerNorm"], ["rms", "RMSNorm"]]],
  qk_norm: ["norms of queries and keys", FIRST.qk_norm, YES],
  biases: ["biases", FIRST.biases, [["all", "all"], ["qkv", "queries, keys, values"], ["none", "none"]]],
  positions_kind: ["positions", FIRST.positions_kind, [["learned", "learned"], ["rope", "rotary"]]],
  tied: ["head is the embedding", FIRST.tied, YES],
  experts_per_token: ["experts for each token", FIRST.experts_per_token, null],
  expert_hidden: ["width of an expert", FIRST.expert_hidden, null],
  shared_experts: ["shared experts", FIRST.shared_experts, null, 0],
  mixture_every: ["every n-th layer has experts", FIRST.mixture_every, null],
  dense_first: ["layers without, at first", FIRST.dense_first, null, 0],
  router_bias: ["router balances by a bias", FIRST.router_bias, YES],
  latent: ["latent attention: five widths", FIRST.latent, "text"],
  gpus: ["GPUs", 64, null],
  gpu: ["kind of GPU", "H100", Object.keys(machines).map(name => [name, name])],
  node: ["GPUs in a node", 8, null],
  network: ["network, GB/s for each GPU", machines.H100.network / 1e9, null, "any"],
  good: ["network speed reached", "80", [["80", "80 %"], ["50", "50 %"], ["20", "20 %: a bad fabric"]]],
  batch: ["sequences in a step", 512, null],
  dtype: ["numbers", "bfloat16", [["bfloat16", "bfloat16, fp32 copy"], ["float32", "float32"]]],
  optimizer: ["optimizer", "adamw", [["adamw", "AdamW"], ["lars", "LARS"], ["sgd", "SGD"]]],
  reached: ["peak speed reached", "fitted", [["fitted", "as published runs"], ["60", "60 %"], ["50", "50 %, as in the chapters"], ["40", "40 %"]]],
  tokens: ["billions of tokens", 300, null],
  dp: ["dp: data", 64, null],
  zero: ["ZeRO", "1", [["0", "none"], ["1", "stage 1"], ["2", "stage 2"], ["3", "stage 3, FSDP"]]],
  tp: ["tp: tensor", 1, null],
  sequence: ["sequence parallel", "no", YES],
  pp: ["pp: pipeline", 1, null],
  cp: ["cp: context", 1, null],
  ep: ["ep: experts", 1, null],
  recompute: ["recomputation", "none", [["none", "none"], ["selective", "selective"], ["full", "full"]]],
  microbatches: ["micro-batches", 2, null],
}
const SIZES = Object.keys(FIRST).filter(name => name in FIELDS)
const MAIN = SIZES.filter(name => Object.keys(FIELDS).indexOf(name) <= Object.keys(FIELDS).indexOf("experts"))
const RUN = ["gpus", "gpu", "node", "network", "good", "batch", "dtype", "optimizer", "reached", "tokens"]
const LAYOUT = ["dp", "zero", "tp", "sequence", "pp", "cp", "ep", "recompute", "microbatches"]

function control(name) {
  const [label, value, options, least = 1] = FIELDS[name]
  if (options === "text") return `<label>${label} <input name="${name}" type="text" value="${value}"></label>`
  const input = options
    ? `<select name="${name}">${options.map(([key, title]) => `<option value="${key}">${title}</option>`).join("")}</select>`
    : `<input name="${name}" type="number" min="${least === "any" ? 0 : least}" step="${least === "any" ? least : 1}" value="${value}">`
  return `<label>${label} ${input}</label>`
}

const controls = names => `<div class="explorer-form">${names.map(control).join("")}</div>`
const FORM = `<form class="calculator-form">
  <fieldset><legend>Your model</legend>
    <label>Paste the config.json of a Hugging Face model, or choose the file:
      <textarea name="config" rows="3" spellcheck="false" placeholder='{"model_type": "llama", "hidden_size": 4096, …}'></textarea></label>
    <input name="file" type="file" accept=".json,application/json" aria-label="config.json">
    <p>It is read in your browser, and nothing is sent anywhere.</p>
    <p class="calculator-read" role="status"></p>
    ${controls(["model", ...MAIN])}
    <details><summary>More of the model</summary>${controls(SIZES.filter(name => !MAIN.includes(name)))}</details>
  </fieldset>
  <fieldset><legend>The machines and the run</legend>${controls(RUN)}</fieldset>
  <div class="calculator-ranking"></div>
  <fieldset><legend>One layout</legend>${controls(LAYOUT)}</fieldset>
</form>
<div class="calculator-result" aria-live="polite"></div>`

// What fields have where the address says nothing: the preset's sizes, and the network of such machines.
function usual(model, gpu) {
  const found = Object.fromEntries(Object.entries(FIELDS).map(([name, [, value]]) => [name, value]))
  if (model in models) SIZES.forEach(name => (found[name] = models[model][name]))
  return { ...found, network: machines[gpu in machines ? gpu : found.gpu].network / 1e9 }
}

const list = numbers => (numbers.length > 8 ? [...numbers.slice(0, 7), "…"] : numbers).join(", ")
const total = parts => Object.values(parts).reduce((a, b) => a + b)
const inGb = parts => Object.fromEntries(Object.entries(parts).map(([name, size]) => [name, size / 1e9]))
const stepOf = seconds => seconds.compute + seconds.again + seconds.exposed + seconds.idle

// Widths of latent attention; null without it, or where they are no five numbers.
function latentOf(c) {
  const [queries, keys, plain, rotated, value, ...rest] = c.latent.split(",").map(Number)
  const widths = { queries, keys, plain, rotated, value }
  return !rest.length && Object.values(widths).every(width => Number.isInteger(width) && width > 0) ? widths : null
}

// What is wrong with the model or the run, in one sentence with a cure; "" if layouts can be looked for.
function problem(c) {
  for (const [name, [label, , options, least = 1]] of Object.entries(FIELDS)) {
    if (least === "any" && !(c[name] > 0)) return `${label}: write a number above 0.`
    if (!options && least !== "any" && !(Number.isInteger(c[name]) && c[name] >= least && c[name] <= most(name))) {
      return `${label}: write a whole number from ${least} to ${group(most(name))}.`
    }
  }
  if (c.latent && !latentOf(c)) return `latent attention: write five whole numbers, such as ${models["deepseek-v3"].latent}, or nothing.`
  if (c.latent && c.kv_heads !== c.heads) return `Latent attention has as many heads of keys as heads: ${c.heads}.`
  if (c.heads % c.kv_heads) return `${c.kv_heads} heads of keys are not shared evenly by ${c.heads} heads; take one of ${list(divisors(c.heads))}.`
  if (c.experts && c.experts_per_token > c.experts) return `${c.experts_per_token} experts for each token are more than there are: ${c.experts}.`
  if (c.gpus > c.node && c.gpus % c.node) return `${c.gpus} GPUs do not fill nodes of ${c.node}; take ${Math.floor(c.gpus / c.node) * c.node}.`
  return ""
}

// What is wrong with the one layout.
function misfit(c) {
  const { shape } = asked(c)
  if (!divides(shape, c.tp)) {
    const ways = divisors(c.node).filter(tp => divides(shape, tp))
    return c.latent
      ? "Latent attention is planned without tensor parallelism; take tp = 1."
      : `tp = ${c.tp} does not divide ${c.heads} heads, ${c.kv_heads} of keys, or a width of ${c.mlp_hidden}; take one of ${list(ways)}.`
  }
  if (c.latent && c.cp > 1) return "Latent attention is planned without context parallelism; take cp = 1."
  if (c.pp > c.layers) return `pp = ${c.pp} is more than the ${c.layers} layers; take at most ${c.layers}.`
  if (c.cp > 1 && c.positions % (2 * c.cp)) return `cp = ${c.cp} ranks hold two chunks each, which ${c.positions} positions do not give; take a cp whose double divides them.`
  if (c.sequence === "yes" && c.tp === 1) return "Sequence parallelism divides what tensor-parallel ranks hold alike; it needs tp of 2 or more."
  if (c.sequence === "yes" && (c.positions / c.cp) % c.tp) return `Sequence parallelism cuts ${c.positions / c.cp} positions over tp = ${c.tp}, which does not divide them; take another tp, or do without.`
  if (c.ep > 1 && !c.experts) return `ep = ${c.ep} needs experts; give their number, or take ep = 1.`
  if (c.dp % c.ep) return `ep = ${c.ep} ranks are among the dp = ${c.dp} and must divide them; take one of ${list(divisors(c.dp))}.`
  if (c.ep > c.experts && c.experts) return `ep = ${c.ep} is more than the ${c.experts} experts; take at most ${c.experts}.`
  if (c.experts && c.cp > 1) return "Experts together with context parallelism are not part of the trainer; take cp = 1."
  if (c.zero >= 2 && c.pp > 1) return `ZeRO ${c.zero} with a pipeline would send gradients with every micro-batch, and the trainer refuses it; take ZeRO 1.`
  if (c.zero >= 2 && c.experts) return `ZeRO ${c.zero} with experts is not part of the trainer; take ZeRO 1.`
  const each = c.dp * c.microbatches
  if (c.batch % each) return `${c.batch} sequences do not divide by dp · micro-batches = ${each}; take ${Math.ceil(c.batch / each) * each}.`
  return ""
}

// What the formulas ask for: the arguments that all layouts have in common.
function asked(c) {
  const item = c.dtype === "float32" ? 4 : 2
  const states = { adamw: 8, lars: 4, sgd: 0 }[c.optimizer] + (item < 4 ? 4 : 0)
  const machine = { ...machines[c.gpu], network: c.network * 1e9 }
  return {
    shape: {
      ...c, inner: c.mlp_hidden, expert_inner: c.expert_hidden, gated: c.mlp === "swiglu", rms: c.norm === "rms",
      learned: c.positions_kind === "learned", tied: c.tied === "yes", qk_norm: c.qk_norm === "yes",
      router_bias: c.router_bias === "yes", chosen: c.experts_per_token, latent: latentOf(c),
    },
    sizes: { parameter: item, gradient: item, optimizer: states },
    machine,
    lines: { ...fabric, per_node: c.node, reached_out: c.good / 100 },
    reached: c.reached === "fitted" ? machine.fitted : { products: c.reached / 100, core: null, moved: 0, contended: 0 },
  }
}

const cutOf = c => ({ ...c, sequence: c.sequence === "yes", sequences: c.batch / c.dp / c.microbatches })
const named = cut => ["dp", "pp", "cp", "tp", "ep"].filter(axis => cut[axis] > 1).map(axis => axis + cut[axis]).join("×") || "one GPU"

function paragraph(html, kind = "") {
  const made = document.createElement("p")
  made.innerHTML = html
  if (kind) made.className = kind
  return made
}

// The ten fastest layouts; `choose` takes the one that was clicked.
function ranking(c, choose) {
  const { shape, sizes, machine, lines, reached } = asked(c)
  const found = fastest(shape, c.gpus, c.batch, machine, sizes, lines, reached)
  if (!found.length) {
    return [paragraph(`No layout of ${group(c.gpus)} GPU${c.gpus > 1 ? "s" : ""} fits: either the ${short(machine.size / 1e9)} GB of each GPU are too few ` +
      `(a tenth stays free), or no dp · pp · cp · tp divides ${c.layers} layers, ${c.kv_heads} heads of keys and ${c.batch} sequences. Take more GPUs, or another batch.`, "calculator-problem")]
  }
  const near = ties(found), flops = stepFlops(c.batch, shape), slowest = found.at(-1).seconds
  const rows = found.map(({ cut }) => {
    const seconds = bar(shape, cut, sizes, machine, lines, reached), step = stepOf(seconds)
    const stages = Array.from({ length: cut.pp }, (_, stage) => held(shape, cut, stage, sizes))
    const worst = inGb(stages.reduce((most, parts) => (total(parts) > total(most) ? parts : most)))
    const row = document.createElement("tr")
    const how = `ZeRO ${cut.zero}, ${cut.microbatches} micro-batch${cut.microbatches > 1 ? "es" : ""} of ${cut.sequences}${cut.recompute === "full" ? ", recomputed" : ""}`
    row.innerHTML = `<th scope="row"><button type="button">${named(cut)}</button><small>${how}</small></th><td>${short(total(worst))}</td>
      <td>${group((c.batch * c.positions) / step)}</td><td>${(100 * utilization(flops, step, c.gpus, machine.flops)).toFixed(1)} %</td><td></td>`
    row.cells[1].append(small(BYTES, worst, machine.size / 1e9, "GB"))
    row.cells[4].append(small(TIME, seconds, slowest, "s", MEANING))
    row.cut = cut
    row.addEventListener("click", () => choose(cut))
    return row
  })
  const scroll = Object.assign(document.createElement("div"), { className: "explorer-scroll calculator-layouts", tabIndex: 0 })
  scroll.innerHTML = `<table class="calculator-table"><caption>The fastest layouts of ${group(c.gpus)} ${c.gpu}</caption><thead><tr><th scope="col">layout</th>
    <th scope="col">GB on a GPU</th><th scope="col">tokens/s</th><th scope="col">MFU</th><th scope="col">time of a step</th></tr></thead><tbody></tbody></table>`
  scroll.querySelector("tbody").append(...rows)
  const words = ["", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
  const order = near > 1 ? ` The first ${words[near]} lie within ${100 * TIE} %, which is less than the model knows: no order is known.` : ""
  const says = paragraph(`Of each dp × pp × cp × tp × ep the fastest way that leaves a tenth of the memory free, under 1F1B.${order} Choose one to see more of it below.`)
  says.setAttribute("role", "status")
  return [says, scroll, legend(BYTES), legend(TIME, MEANING)]
}

function commands(c) {
  const ways = { minitrain: minitrain(c, models, SIZES), torchtitan: torchtitan(c), "Megatron-LM": megatron(c) }
  return Object.entries(ways).flatMap(([name, { command, notes }]) => {
    const pre = Object.assign(document.createElement("pre"), { innerHTML: '<code tabindex="0"></code>' })
    for (const option of command.split(/(?<= )(?=--)/)) { // a line ends between options
      pre.firstChild.append(Object.assign(document.createElement("span"), { textContent: option }))
    }
    return [paragraph(`<strong>${name}</strong>: ${notes.join(" ")}`), pre]
  })
}

// What one layout holds and takes, in pictures and sentences.
function result(c, width) {
  const { shape, sizes, machine, lines, reached } = asked(c), cut = cutOf(c), gpus = c.dp * c.pp * c.cp * c.tp
  const stages = Array.from({ length: c.pp }, (_, stage) => held(shape, cut, stage, sizes)), totals = stages.map(total)
  const most = Math.max(...totals), worst = totals.indexOf(most)
  const shown = stages.map((_, stage) => stage).filter(stage => c.pp <= 12 || stage < 11 || stage === c.pp - 1)
  const rows = shown.map(stage => ({ title: c.pp > 1 ? `stage ${stage}` : "each GPU", total: totals[stage] / 1e9, parts: inGb(stages[stage]) }))
  const whole = parameters(shape, { ...cut, tp: 1, pp: 1, ep: 1 }, 0).reduce((a, b) => a + b)
  const limit = machine.size / 1e9, usable = (1 - room) * machine.size
  const fits = most <= usable
    ? `It fits on ${c.gpu} with ${short((machine.size - most) / 1e9)} GB free.`
    : `It does not fit: of ${short(limit)} GB, ${short(usable / 1e9)} can be used, since a tenth should stay free for what is not counted.`
  const seconds = bar(shape, cut, sizes, machine, lines, reached), step = stepOf(seconds)
  const perSecond = (c.batch * c.positions) / step, days = (c.tokens * 1e9) / perSecond / 86400
  const [unit, scale] = step < 1 ? ["ms", 1e3] : ["s", 1]
  const times = Object.fromEntries(Object.keys(TIME).map(name => [name, seconds[name] * scale]))
  const mfu = 100 * utilization(stepFlops(c.batch, shape), step, gpus, machine.flops)
  return [
    paragraph(`<strong>${named(c)}</strong> on ${group(gpus)} GPU${gpus > 1 ? "s" : ""}, a model of ${short(whole / 1e9)} billion parameters. ` +
      `A GPU${c.pp > 1 ? ` of stage ${worst}` : ""} holds <strong>${short(most / 1e9)} GB</strong>${c.pp > 1 ? ", the most of all" : ""}. ${fits}`),
    bars(width, rows, BYTES, Math.max(most / 1e9, limit) * 1.02, "GB", limit),
    legend(BYTES, {}, inGb(stages[worst]), "GB"),
    paragraph(`A step takes <strong>${short(step * scale)} ${unit}</strong>, and ${short(seconds.hidden * scale)} ${unit} of messages hide behind it. ` +
      `That is ${group(perSecond)} tokens per second, an MFU of <strong>${mfu.toFixed(1)} %</strong>, and ` +
      `<strong>${short(days)} days</strong> for ${group(c.tokens)} billion tokens.`),
    bars(width, [{ title: "a step", total: step * scale, parts: times }], TIME, step * scale * 1.02, unit),
    legend(TIME, MEANING, times, unit),
    ...commands(c),
  ]
}

function calculate(root) {
  root.innerHTML = FORM
  const form = root.querySelector("form"), field = form.elements
  const [ranked, one, read] = ["ranking", "result", "read"].map(name => root.querySelector(`.calculator-${name}`))
  const set = values => Object.entries(values).forEach(([name, value]) => name in FIELDS && (field[name].value = value))
  const given = new URLSearchParams(location.search), first = usual(given.get("model") ?? "7b", given.get("gpu"))
  set(first)
  given.forEach((value, name) => {
    if (!(name in FIELDS)) return
    field[name].value = value
    if (field[name].value === "") field[name].value = first[name] // an unknown choice, or no number
  })
  let before = ""

  function choose(cut) {
    set({ ...cut, sequence: cut.sequence ? "yes" : "no" })
    update()
  }

  function update() {
    const c = Object.fromEntries(
      Object.entries(FIELDS).map(([name, [, , options]]) => [name, options ? field[name].value : Number(field[name].value || NaN)]),
    )
    c.zero = Number(c.zero)
    const differs = name => name !== "positions" && String(c[name]) !== String(models[c.model][name])
    if (c.model in models && SIZES.some(differs)) c.model = field.model.value = "own"
    const plain = { ...usual(c.model, c.gpu), model: "7b", gpu: "H100" }
    const changed = Object.keys(FIELDS).filter(name => String(c[name]) !== String(plain[name]))
    const query = new URLSearchParams(changed.map(name => [name, field[name].value])).toString()
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash)
    const wrong = problem(c), key = JSON.stringify([wrong, ...[...SIZES, ...RUN].map(name => c[name])])
    if (key !== before) ranked.replaceChildren(...(wrong ? [] : ranking(c, choose)))
    before = key
    ranked.querySelectorAll("tbody tr").forEach(row => {
      const same = LAYOUT.every(name => String(name === "sequence" ? c.sequence === "yes" : c[name]) === String(row.cut[name]))
      row.classList.toggle("calculator-chosen", same)
      row.querySelector("button").setAttribute("aria-pressed", same)
    })
    const width = Math.max(320, Math.min(720, root.clientWidth)) // letters keep their size on a phone
    const misses = wrong || misfit(c)
    one.replaceChildren(...(misses ? [paragraph(misses, "calculator-problem")] : result(c, width)))
  }

  function take(text) {
    try {
      const { fields, notes } = readConfig(text)
      set({ model: "own", ...fields })
      read.className = "calculator-read"
      read.textContent = `Read: ${fields.layers} layers of width ${fields.hidden}. ${notes.join(" ")}`
      update()
      ranked.querySelector("tbody tr")?.click() // the layout of another model tells little
    } catch (error) {
      read.className = "calculator-read calculator-problem"
      read.textContent = error.message
    }
  }

  form.addEventListener("input", event => {
    const name = event.target.name
    if (name === "config") return event.target.value.trim() ? take(event.target.value) : read.replaceChildren()
    if (name === "file") return event.target.files[0]?.text().then(take)
    if (name === "model" && field.model.value in models) set(models[field.model.value])
    if (name === "gpu") field.network.value = machines[field.gpu.value].network / 1e9
    update()
  })
  form.addEventListener("submit", event => event.preventDefault())
  update()
}

document.querySelectorAll(".calculator").forEach(calculate)
