// Which parallelism when, for the model and the GPUs that a reader chooses. The sentences are on the page already, made by
// docs/hooks/which.py for 64 H100s: here their numbers are computed again, and each question gets its yes or no.

import { held, parameters, ring, stateBytes } from "./costs.js"
import { group } from "./drawings.js"

const sum = numbers => numbers.reduce((total, number) => total + number, 0)
const SIZES = [2, 2, 12] // bytes of a parameter, of a gradient, and of optimizer states: minitrain.costs.layout.Sizes
const VOCABULARY = 50257
// The rest of minitrain.costs.composition.Shape, as GPT-2 has it, but with rotary positions.
const PLAIN = {
  vocabulary: VOCABULARY, tied: true, experts: 0, learned: false, kv_heads: 0, inner: 0, gated: false, head_size: 0,
  rms: false, biases: "all", qk_norm: false, expert_inner: 0, shared_experts: 0, mixture_every: 2, dense_first: 0,
  router_bias: false, latent: null, chosen: 1,
}

// minitrain.costs.roofline.tokens_to_hide_gradients, and tokens_to_hide_gathers, which is the same
export function tokensToHideGradients(ranks, flops, link, item = 2) {
  return ((ranks - 1) * item * flops) / (2 * ranks * link)
}

// docs/hooks/which.py: shape_of
export function shapeOf(size, positions) {
  const width = 1024 * Math.max(1, Math.floor((size / (12 * 128 ** 2)) ** (1 / 3) / 8 + 0.5))
  const layers = Math.max(1, Math.floor((size - VOCABULARY * width) / (12 * width ** 2) + 0.5))
  return { ...PLAIN, layers, hidden: width, heads: width / 128, positions }
}

// docs/hooks/which.py: decide
export function decide(shape, gpus, tokens, machine, fabric, room = 0.1) {
  const usable = (1 - room) * machine.size, around = ring(fabric, machine, gpus, 1)
  const whole = { dp: 1, pp: 1, cp: 1, tp: 1, ep: 1, zero: 0, sequence: false, recompute: "none", microbatches: 1, sequences: 1 }
  const [parameter, gradient, optimizer] = SIZES
  const batch = Math.floor(tokens / shape.positions)
  const found = { model: sum(parameters(shape, whole, 0)), batch }
  for (const stage of [0, 1, 3]) found[`most${stage}`] = usable / sum(Object.values(stateBytes(stage, 1, gpus, ...SIZES)))
  found.gradients = tokensToHideGradients(gpus, machine.flops / 2, around) // products usually reach half of the peak
  found.gathers = tokensToHideGradients(gpus, machine.flops / 2, around)

  const heldOf = (cut, of = shape) => // the first stage holds most micro-batches, the last one the output
    Math.max(...[0, cut.pp - 1].map(stage => sum(Object.values(held(of, cut, stage, { parameter, gradient, optimizer })))))
  const longest = (zero, recompute) => {
    const fits = positions => heldOf({ ...whole, dp: gpus, zero, recompute }, { ...shape, positions }) <= usable
    return Math.max(0, ...Array.from({ length: 12 }, (_, power) => 1024 * 2 ** power).filter(fits))
  }
  const fitting = cut => {
    const microbatches = Math.max(1, Math.floor(batch / (cut.dp * cut.sequences)))
    const plain = { ...cut, microbatches, sequence: cut.tp > 1 }
    return [plain, { ...plain, recompute: "full" }].find(each => heldOf(each) <= usable) ?? null
  }

  const plain = fitting({ ...whole, dp: gpus }) ?? fitting({ ...whole, dp: gpus, zero: 1 })
  found.stage = plain ? plain.zero : 3
  Object.assign(found, { kept: longest(found.stage, "none"), again: longest(found.stage, "full"), micro: 0 })
  let chosen = batch >= gpus ? plain : null
  if (!plain && batch >= gpus) {
    for (const recompute of ["none", "full"]) {
      const cut = { ...whole, dp: gpus, zero: 3, recompute }
      while (gpus * 2 * cut.sequences <= batch && cut.sequences * shape.positions < found.gathers) cut.sequences *= 2
      while (cut.sequences > 1 && heldOf(cut) > usable) cut.sequences /= 2
      if (chosen || heldOf(cut) > usable) continue
      found.micro = cut.sequences * shape.positions
      if (found.micro >= found.gathers) chosen = { ...cut, microbatches: Math.floor(batch / (gpus * cut.sequences)) }
    }
  }
  const node = Math.min(fabric.per_node, gpus)
  for (let tp = 2; !chosen && tp <= node; tp *= 2) {
    if (batch >= gpus / tp) chosen = fitting({ ...whole, dp: gpus / tp, tp, zero: 1 })
  }
  for (let pp = 1; !chosen && node * pp <= gpus && pp <= shape.layers; pp *= 2) {
    const ranks = gpus / (node * pp) // more stages are for states, and parts of a sequence for activations
    const states = stateBytes(1, sum(parameters(shape, { ...whole, pp, tp: node }, 0)), ranks, ...SIZES)
    if (sum(Object.values(states)) > usable) continue
    for (let cp = 1; cp <= Math.min(ranks, Math.max(1, Math.floor(shape.positions / 1024))); cp *= 2) {
      const cut = fitting({ ...whole, dp: ranks / cp, pp, cp, tp: node, zero: 1 })
      if (!chosen && cut && batch >= cut.dp) chosen = cut
    }
  }
  found.fits = chosen !== null
  if (!chosen) return found
  for (const name of ["dp", "pp", "cp", "tp", "zero", "recompute", "microbatches"]) found[name] = chosen[name]
  return { ...found, held: heldOf(chosen) }
}

// ---- the page ----

const short = number => (number >= 10 ? group(number) : number.toFixed(number >= 1 ? 1 : 2))
const powers = (first, last) => Array.from({ length: last - first + 1 }, (_, index) => 2 ** (first + index))
const MANTISSAS = [1, 1.3, 1.6, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]
const BILLIONS = [...[0.1, 1, 10, 100].flatMap(unit => MANTISSAS.map(each => Number((each * unit).toPrecision(3)))), 1000]
const SLIDERS = { // label, values, the one at first, unit
  gpus: ["GPUs", powers(0, 14), 64, ""],
  memory: ["memory of a GPU", [16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 180, 192, 256, 288], 80, "GB"],
  network: ["network card of a GPU", [3.125, 6.25, 12.5, 25, 50, 100], 50, "GB/s"],
  reached: ["of which messages reach", Array.from({ length: 20 }, (_, step) => 5 * (step + 1)), 80, "%"],
  size: ["parameters", BILLIONS, 7, "billion"],
  positions: ["tokens in a sequence", powers(10, 21), 2048, ""],
  tokens: ["tokens in a step", powers(16, 26), 2 ** 22, ""],
}

// For each question whether the answer is yes, and why.
function answers(d, c) {
  const plain = d.stage < 3, used = d.fits && d.tp * d.pp * d.cp === 1
  const few = `a step has ${group(d.batch)} sequences for ${group(c.gpus)} GPUs`
  const perGpu = d.batch * c.positions / c.gpus
  const said = {}
  if (d.model > d.most1) said.data = [false, "The model is larger, so each GPU cannot hold all of it."]
  else if (!plain) said.data = [false, "Its states fit, but not together with the activations of a sequence."]
  else if (!used) said.data = [false, `It fits, but ${few}.`]
  else if (c.gpus === 1) said.data = [true, "Nothing needs to be divided: one GPU is enough."]
  else {
    const waits = perGpu < d.gradients ? ` With ${group(perGpu)} tokens per GPU, gradients are waited for in part.` : ""
    said.data = [true, (d.zero ? "ZeRO 1 is needed." : "All states fit on each GPU.") + waits]
  }
  if (!d.fits) said.recompute = [true, "They are, and what follows does not help enough either."]
  else if (d.recompute === "full") said.recompute = [true, `Yours have ${group(c.positions)}.`]
  else said.recompute = [false, c.positions > d.kept ? "Not in the layout that the questions below lead to." : `Yours have ${group(c.positions)}.`]
  if (used && d.zero === 3) said.zero3 = [true, `A micro-batch has ${group(d.micro)} tokens on each GPU.`]
  else if (used) said.zero3 = [false, "The states fit already."]
  else if (d.batch < c.gpus) said.zero3 = [false, `There is no sequence for each GPU: ${few}.`]
  else if (!d.micro) said.zero3 = [false, d.model > d.most3 ? "The model is larger than that." : "A sequence does not fit beside the states."]
  else said.zero3 = [false, `A micro-batch has ${group(d.micro)} tokens on each GPU.`]
  const none = [false, d.fits ? "It fits without." : "It would not be enough."]
  said.tensor = d.fits && d.tp > 1 ? [true, `Over ${d.tp} GPUs, with ZeRO 1.`] : none
  said.pipeline = said.context = none
  if (d.fits && d.pp > 1) {
    const bubble = (d.pp - 1) / d.microbatches
    const enough = `${d.pp} stages with ${group(d.microbatches)} micro-batches: a bubble of ${(100 * bubble).toFixed(0)} %.`
    said.pipeline = [true, `${enough}${bubble > 0.1 ? " That is more than a tenth, but the states need the stages." : ""}`]
  }
  if (d.fits && d.cp > 1) said.context = [true, `Over ${d.cp} ranks.`]
  said.experts = [null, "This is for you to decide; the sizes above do not need it."]
  return said
}

function summary(d, c) {
  const title = `For ${short(d.model / 1e9)} billion parameters on ${group(c.gpus)} GPU${c.gpus > 1 ? "s" : ""}: `
  if (!d.fits) {
    return `${title}<strong>nothing fits</strong>. Take more GPUs or ones with more memory, shorter sequences, or more tokens in a step.`
  }
  const parts = {
    [d.zero ? `ZeRO ${d.zero}` : "data parallelism"]: c.gpus > 1, "recomputation": d.recompute === "full",
    [`tensor parallelism over ${d.tp}`]: d.tp > 1, [`${d.pp} pipeline stages`]: d.pp > 1, [`context parallelism over ${d.cp}`]: d.cp > 1,
  }
  const missing = { recomputation: d.recompute !== "full", "tensor parallelism": d.tp === 1, pipeline: d.pp === 1, "context parallelism": d.cp === 1 }
  const names = which => Object.keys(which).filter(name => which[name])
  const left = names(missing).length ? `; no ${names(missing).join(", no ")}` : ""
  return `${title}<strong>${names(parts).join(", ") || "one GPU is enough"}</strong>${left}. A GPU holds ${short(d.held / 1e9)} of ${group(c.memory)} GB.`
}

function choose(root, chart) {
  const { models, machines, room, fabric } = JSON.parse(document.getElementById("which-data").textContent)
  const slider = ([name, [label, values, first]]) =>
    `<label>${label} <output name="${name}_"></output><input type="range" name="${name}" min="0" max="${values.length - 1}" value="${values.indexOf(first)}"></label>`
  const titles = { size: "by its size", ...Object.fromEntries(Object.entries(models).map(([name, { title }]) => [name, title])) }
  const select = (name, label, options) =>
    `<label>${label} <select name="${name}">${Object.entries(options).map(([key, title]) => `<option value="${key}">${title}</option>`).join("")}</select></label>`
  const gpus = Object.fromEntries(Object.keys(machines).map(name => [name, name]))
  const [ours, theirs] = [["gpus", "memory", "network", "reached"], ["size", "positions", "tokens"]]
    .map(names => names.map(name => slider([name, SLIDERS[name]])).join(""))
  root.innerHTML = `<form class="calculator-form">
    <fieldset><legend>The GPUs</legend><div class="explorer-form">${select("gpu", "GPU", gpus)}${ours}</div></fieldset>
    <fieldset><legend>The model</legend><div class="explorer-form">${select("model", "model", titles)}${theirs}</div></fieldset>
    </form><p class="which-summary" aria-live="polite"></p>`
  const field = root.querySelector("form").elements
  const first = { gpu: "H100", model: "7b", ...Object.fromEntries(Object.entries(SLIDERS).map(([name, [, , value]]) => [name, value])) }
  const nearest = (name, value) => { // the slider's values are few; an address may have any
    const values = SLIDERS[name][1]
    field[name].value = values.reduce((best, each, index) => (Math.abs(each - value) <= Math.abs(values[best] - value) ? index : best), 0)
  }
  const ofMachine = () => {
    nearest("memory", machines[field.gpu.value].size / 1e9)
    nearest("network", machines[field.gpu.value].network / 1e9)
  }
  const ofModel = () => {
    if (field.model.value === "size") return
    const whole = { dp: 1, pp: 1, cp: 1, tp: 1, ep: 1 }
    nearest("size", sum(parameters(models[field.model.value].shape, whole, 0)) / 1e9)
  }
  const asked = new URLSearchParams(location.search)
  for (const name of ["gpu", "model"]) {
    field[name].value = asked.get(name) ?? first[name]
    if (field[name].value === "") field[name].value = first[name] // a name that does not exist
  }
  ofMachine()
  ofModel()
  for (const name of Object.keys(SLIDERS)) {
    const value = Number(asked.get(name))
    if (value > 0) nearest(name, value)
  }
  if (Number(asked.get("size")) > 0) field.model.value = "size"

  function update() {
    const c = { gpu: field.gpu.value, model: field.model.value }
    for (const [name, [, values, , unit]] of Object.entries(SLIDERS)) {
      c[name] = values[field[name].value]
      const shown = `${name === "size" ? c.size : name === "network" ? c.network : group(c[name])} ${unit}`.trim()
      field[`${name}_`].value = shown
      field[name].setAttribute("aria-valuetext", shown)
    }
    const known = c.model !== "size"
    const changed = Object.keys(first).filter(name => c[name] !== first[name] && !(known && name === "size"))
    const query = new URLSearchParams(changed.map(name => [name, c[name]])).toString()
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash)

    const shape = known ? { ...models[c.model].shape, positions: c.positions } : shapeOf(c.size * 1e9, c.positions)
    if (known) field.size_.value = `${short(sum(parameters(shape, { dp: 1, pp: 1, cp: 1, tp: 1, ep: 1 }, 0)) / 1e9)} billion`
    const machine = { ...machines[c.gpu], size: c.memory * 1e9, network: c.network * 1e9 }
    const d = decide(shape, c.gpus, c.tokens, machine, { ...fabric, reached_out: c.reached / 100 }, room)
    const stages = d.fits && d.pp > 1 ? d.pp : fabric.per_node
    const numbers = { ...d, gpus: c.gpus, node: Math.min(fabric.per_node, c.gpus), stages, bubble: 10 * (stages - 1) }
    chart.querySelectorAll("[data-which]").forEach(place => {
      const name = place.dataset.which
      place.textContent = name === "model" || name.startsWith("most") ? short(d[name] / 1e9) : group(numbers[name])
    })
    for (const [name, [yes, why]] of Object.entries(answers(d, c))) {
      const question = chart.querySelector(`[data-question="${name}"]`), answer = question.nextElementSibling
      const said = question.querySelector(".which-said") ?? question.appendChild(document.createElement("p"))
      said.className = "which-said"
      said.innerHTML = yes === null ? why : `<strong>${yes ? "Yes" : "No"}.</strong> ${why}`
      answer.classList.toggle("which-no", yes === false)
    }
    root.querySelector(".which-summary").innerHTML = summary(d, c)
  }

  root.addEventListener("input", event => {
    if (event.target.name === "gpu") ofMachine()
    if (event.target.name === "model") ofModel()
    if (event.target.name === "size") field.model.value = "size"
    update()
  })
  root.querySelector("form").addEventListener("submit", event => event.preventDefault())
  update()
}

if (typeof document !== "undefined") {
  document.querySelectorAll(".which-choice").forEach(root => choose(root, document.querySelector(".which")))
}
