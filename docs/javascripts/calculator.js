// The calculator: a form, two pictures, a few sentences. What it computes is in costs.js.

import { bar, held, parameters, stepFlops, utilization } from "./costs.js"

const { models, machines, room, fabric } = JSON.parse(document.getElementById("calculator-data").textContent)
const BYTES = { "parameters": "#0072b2", "gradients": "#e69f00", "optimizer states": "#56b4e9", "activations": "#f0e442" }
const TIME = { compute: "#56b4e9", again: "#f0e442", exposed: "#d55e00", idle: "#bbbbbb" }
const MEANING = {
  compute: "computing", again: "computing again", exposed: "waiting for messages", idle: "idle in the pipeline",
}
const SIZES = ["layers", "hidden", "heads", "positions", "vocabulary"]
const LEFT = 76, ROW = 30

// name: [label, value at first, options or null for a number]
const FIELDS = {
  model: ["model", "7b", Object.entries(models).map(([name, { title }]) => [name, title])],
  layers: ["layers", 32, null],
  hidden: ["hidden", 4096, null],
  heads: ["heads", 32, null],
  positions: ["positions", 2048, null],
  vocabulary: ["vocabulary", 50257, null],
  experts: ["experts", 0, null],
  dtype: ["numbers", "bfloat16", [["bfloat16", "bfloat16, fp32 copy"], ["float32", "float32"]]],
  optimizer: ["optimizer", "adamw", [["adamw", "AdamW"], ["lars", "LARS"], ["sgd", "SGD"]]],
  dp: ["dp: data", 8, null],
  zero: ["ZeRO", "1", [["0", "none"], ["1", "stage 1"], ["2", "stage 2"], ["3", "stage 3, FSDP"]]],
  tp: ["tp: tensor", 1, null],
  sequence: ["sequence parallel", "no", [["no", "no"], ["yes", "yes"]]],
  pp: ["pp: pipeline", 1, null],
  cp: ["cp: context", 1, null],
  ep: ["ep: experts", 1, null],
  recompute: ["recomputation", "none", [["none", "none"], ["selective", "selective"], ["full", "full"]]],
  batch: ["sequences in a step", 512, null],
  microbatches: ["micro-batches", 64, null],
  gpu: ["GPU", "H100", Object.keys(machines).map(name => [name, name])],
  node: ["GPUs in a node", 8, null],
  reached: ["% of the peak reached", 50, null],
  tokens: ["billions of tokens", 300, null],
}
const GROUPS = {
  "The model": ["model", ...SIZES, "experts"],
  "The layout": ["dp", "zero", "tp", "sequence", "pp", "cp", "ep", "recompute"],
  "The run": ["dtype", "optimizer", "batch", "microbatches", "gpu", "node", "reached", "tokens"],
}

function control(name) {
  const [label, value, options] = FIELDS[name]
  const input = options
    ? `<select name="${name}">${options.map(([key, title]) => `<option value="${key}">${title}</option>`).join("")}</select>`
    : `<input name="${name}" type="number" min="${name === "experts" ? 0 : 1}" step="1" value="${value}">`
  return `<label>${label} ${input}</label>`
}

const divisors = number => Array.from({ length: number }, (_, i) => i + 1).filter(each => number % each === 0)
const list = numbers => (numbers.length > 8 ? [...numbers.slice(0, 7), "…"] : numbers).join(", ")
const group = number => Math.round(number).toLocaleString("en-US")
const short = number => (number >= 100 ? group(number) : String(Number(number.toPrecision(3))))

// What is wrong with a choice, in one sentence with a cure; "" if it can be computed.
function problem(c) {
  for (const [name, [label, , options]] of Object.entries(FIELDS)) {
    const least = name === "experts" ? 0 : 1
    if (!options && !(Number.isInteger(c[name]) && c[name] >= least)) return `${label}: write a whole number from ${least} on.`
  }
  if (c.hidden % c.heads) return `${c.heads} heads do not divide a width of ${c.hidden}; take one of ${list(divisors(c.hidden))}.`
  if (c.heads % c.tp) return `tp = ${c.tp} does not divide ${c.heads} heads; take one of ${list(divisors(c.heads))}.`
  if (c.pp > c.layers) return `pp = ${c.pp} is more than the ${c.layers} layers; take at most ${c.layers}.`
  if (c.cp > 1 && c.positions % (2 * c.cp)) return `cp = ${c.cp} ranks hold two chunks each, which ${c.positions} positions do not give.`
  if (c.sequence === "yes" && (c.positions / c.cp) % c.tp) return `Sequence parallelism cuts ${c.positions / c.cp} positions over tp = ${c.tp}, which does not divide them.`
  if (c.ep > 1 && !c.experts) return `ep = ${c.ep} needs experts; give their number, or take ep = 1.`
  if (c.dp % c.ep) return `ep = ${c.ep} ranks are among the dp = ${c.dp} and must divide them; take one of ${list(divisors(c.dp))}.`
  if (c.ep > c.experts && c.experts) return `ep = ${c.ep} is more than the ${c.experts} experts.`
  if (c.experts && c.cp > 1) return "Experts together with context parallelism are not part of the trainer; take cp = 1."
  if (c.zero >= 2 && c.pp > 1) return `ZeRO ${c.zero} with a pipeline would send gradients with every micro-batch, and the trainer refuses it; take ZeRO 1.`
  const each = c.dp * c.microbatches
  if (c.batch % each) return `${c.batch} sequences do not divide by dp · micro-batches = ${each}; take ${Math.ceil(c.batch / each) * each}.`
  return ""
}

function command(c) {
  const given = [`--preset ${c.model === "7b" ? "gpt2" : c.model}`]
  const preset = models[c.model === "7b" ? "gpt2" : c.model]
  SIZES.filter(name => c[name] !== preset[name]).forEach(name => given.push(`--${name} ${c[name]}`))
  if (c.experts) given.push(`--experts ${c.experts}`)
  ;["dp", "pp", "cp", "tp", "ep"].filter(name => c[name] > 1).forEach(name => given.push(`--${name} ${c[name]}`))
  if (c.zero > 0) given.push(`--zero ${c.zero}`)
  if (c.sequence === "yes") given.push("--sequence-parallel")
  if (c.recompute !== "none") given.push(`--recompute ${c.recompute}`)
  if (c.optimizer !== "adamw") given.push(`--optimizer ${c.optimizer}`)
  given.push(`--batch ${c.batch}`, `--microbatches ${c.microbatches}`, `--dtype ${c.dtype}`, "--dry-run")
  return `python -m minitrain.train ${given.join(" ")}`
}

function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  if (text !== undefined) made.textContent = text
  parent?.append(made)
  return made
}

// Bars of parts, one below the other, with a line where the limit is.
function bars(width, rows, colors, end, unit, limit) {
  const height = rows.length * ROW + (limit ? 18 : 0)
  const x = value => LEFT + (value * (width - LEFT - 70)) / end
  const said = rows.map(row => `${row.title}: ${short(row.total)} ${unit}`).join("; ")
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said })
  rows.forEach((row, index) => {
    let from = 0
    const y = index * ROW + 3
    element("text", { x: 0, y: y + 17, class: "explorer-rank" }, svg, row.title)
    for (const [name, color] of Object.entries(colors)) {
      const length = Math.max(0, x(from + row.parts[name]) - x(from))
      const part = element("rect", { x: x(from), y, width: length, height: ROW - 6, fill: color, stroke: "var(--md-default-bg-color)" }, svg)
      element("title", {}, part, `${name}: ${short(row.parts[name])} ${unit}`)
      from += row.parts[name]
    }
    element("text", { x: x(from) + 5, y: y + 17, class: "explorer-rank" }, svg, `${short(row.total)} ${unit}`)
  })
  if (limit) {
    element("line", { x1: x(limit), x2: x(limit), y1: 0, y2: rows.length * ROW, class: "calculator-limit" }, svg)
    const text = { x: x(limit), y: height - 4, "text-anchor": "middle", class: "explorer-rank" }
    element("text", text, svg, `${short(limit)} ${unit}`)
  }
  return svg
}

function legend(colors, parts, unit, names = {}) {
  const made = document.createElement("p")
  made.className = "explorer-legend"
  for (const [name, color] of Object.entries(colors)) {
    const entry = document.createElement("span")
    const svg = element("svg", { viewBox: "0 0 26 14", width: 26, height: 14, "aria-hidden": "true" }, entry)
    element("rect", { width: 26, height: 14, rx: 2, fill: color }, svg)
    entry.append(` ${names[name] ?? name}: ${short(parts[name])} ${unit}`)
    made.append(entry)
  }
  return made
}

function calculate(root) {
  const groups = Object.entries(GROUPS).map(
    ([title, names]) => `<fieldset><legend>${title}</legend><div class="explorer-form">${names.map(control).join("")}</div></fieldset>`,
  )
  root.innerHTML = `<form class="calculator-form">${groups.join("")}</form>
    <div class="calculator-result" aria-live="polite"></div>`
  const form = root.querySelector("form"), field = form.elements, result = root.querySelector(".calculator-result")
  for (const [name, [, value]] of Object.entries(FIELDS)) field[name].value = value
  new URLSearchParams(location.search).forEach((value, name) => {
    if (!(name in FIELDS)) return
    field[name].value = value
    if (field[name].value === "") field[name].value = FIELDS[name][1] // an unknown choice, or no number
  })

  function paragraph(html, kind = "") {
    const made = document.createElement("p")
    made.innerHTML = html
    if (kind) made.className = kind
    return made
  }

  function update() {
    const c = Object.fromEntries(
      Object.entries(FIELDS).map(([name, [, , options]]) => [name, options ? field[name].value : Number(field[name].value)]),
    )
    c.zero = Number(c.zero)
    const changed = Object.entries(FIELDS).filter(([name, [, value]]) => String(c[name]) !== String(value))
    const query = new URLSearchParams(changed.map(([name]) => [name, c[name]])).toString()
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash)
    const wrong = problem(c)
    if (wrong) return result.replaceChildren(paragraph(wrong, "calculator-problem"))

    const shape = { ...c, tied: true, gates: 1, learned: true, kv_heads: 0, inner: 0, gated: false }
    const item = c.dtype === "float32" ? 4 : 2
    const states = { adamw: 8, lars: 4, sgd: 0 }[c.optimizer] + (item < 4 ? 4 : 0)
    const sizes = { parameter: item, gradient: item, optimizer: states }
    const cut = { ...c, sequence: c.sequence === "yes", sequences: c.batch / c.dp / c.microbatches }
    const machine = machines[c.gpu], gpus = c.dp * c.pp * c.cp * c.tp
    const stages = Array.from({ length: c.pp }, (_, stage) => held(shape, cut, stage, sizes))
    const totals = stages.map(parts => Object.values(parts).reduce((a, b) => a + b))
    const most = Math.max(...totals), worst = totals.indexOf(most)
    const inGb = parts => Object.fromEntries(Object.entries(parts).map(([name, size]) => [name, size / 1e9]))
    const shown = stages.map((_, stage) => stage).filter(stage => c.pp <= 12 || stage < 11 || stage === c.pp - 1)
    const rows = shown.map(stage => ({ title: c.pp > 1 ? `stage ${stage}` : "each GPU", total: totals[stage] / 1e9, parts: inGb(stages[stage]) }))
    const whole = parameters(shape, { ...cut, tp: 1, pp: 1, ep: 1 }, 0).reduce((a, b) => a + b)

    const width = Math.max(320, Math.min(720, root.clientWidth)) // letters keep their size on a phone
    const limit = machine.size / 1e9, usable = (1 - room) * machine.size
    const fits = most <= usable
      ? `It fits on ${c.gpu} with ${short((machine.size - most) / 1e9)} GB free.`
      : `It does not fit: of ${short(limit)} GB, ${short(usable / 1e9)} can be used, since a tenth should stay free for what is not counted.`
    const reached = { products: c.reached / 100, core: null, moved: 0, contended: 0 }
    const seconds = bar(shape, cut, sizes, machine, { ...fabric, per_node: c.node }, reached)
    const step = seconds.compute + seconds.again + seconds.exposed + seconds.idle
    const flops = stepFlops(c.batch, shape)
    const perSecond = (c.batch * c.positions) / step
    const days = (c.tokens * 1e9) / perSecond / 86400
    const [unit, scale] = step < 1 ? ["ms", 1e3] : ["s", 1]
    const times = Object.fromEntries(Object.keys(TIME).map(name => [name, seconds[name] * scale]))
    const mfu = 100 * utilization(flops, step, gpus, machine.flops)
    result.replaceChildren(
      paragraph(`<strong>${group(gpus)} GPU${gpus > 1 ? "s" : ""}</strong>, a model of ${short(whole / 1e9)} billion parameters. ` +
        `A GPU${c.pp > 1 ? ` of stage ${worst}` : ""} holds <strong>${short(most / 1e9)} GB</strong>${c.pp > 1 ? ", the most of all" : ""}. ${fits}`),
      bars(width, rows, BYTES, Math.max(most / 1e9, limit) * 1.02, "GB", limit),
      legend(BYTES, inGb(stages[worst]), "GB"),
      paragraph(`A step takes <strong>${short(step * scale)} ${unit}</strong>, and ${short(seconds.hidden * scale)} ${unit} of messages hide behind it. ` +
        `That is ${group(perSecond)} tokens per second, an MFU of <strong>${mfu.toFixed(1)} %</strong>, and ` +
        `<strong>${short(days)} days</strong> for ${group(c.tokens)} billion tokens.` +
        (c.experts ? " The operations counted are those of one expert for each token." : "")),
      bars(width, [{ title: "a step", total: step * scale, parts: times }], TIME, step * scale * 1.02, unit),
      legend(TIME, times, unit, MEANING),
      paragraph("The dry run says what else there is to know, such as which bytes are sent:"),
      Object.assign(document.createElement("pre"), { innerHTML: "<code></code>" }),
    )
    result.querySelector("pre").tabIndex = 0
    result.querySelector("code").textContent = command(c)
  }

  form.addEventListener("input", event => {
    if (event.target.name === "model") SIZES.forEach(name => (field[name].value = models[field.model.value][name]))
    update()
  })
  form.addEventListener("submit", event => event.preventDefault())
  update()
}

document.querySelectorAll(".calculator").forEach(calculate)
