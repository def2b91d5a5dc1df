// The game's page: a form, a score, two pictures, a link. What it computes is in referee.js.

import { BYTES, MEANING, TIME, bars, group, legend } from "./drawings.js"
import { judge, problem } from "./referee.js"

const { max, min } = Math, sum = numbers => numbers.reduce((total, number) => total + number, 0)
// name: [label, options or null for a number]
const FIELDS = {
  dp: ["dp: data", null],
  pp: ["pp: pipeline", null],
  cp: ["cp: context", null],
  tp: ["tp: tensor", null],
  sequence: ["sequence parallel", [["no", "no"], ["yes", "yes"]]],
  zero: ["ZeRO", [["0", "none"], ["1", "stage 1"], ["2", "stage 2"], ["3", "stage 3, FSDP"]]],
  microbatches: ["micro-batches", null],
  recompute: ["recomputation", [["none", "none"], ["selective", "selective"], ["full", "full"]]],
  schedule: ["schedule", [["1f1b", "1F1B"], ["gpipe", "GPipe"], ["interleaved", "interleaved"], ["zb-h1", "zero bubble H1"], ["zb-h2", "zero bubble H2"]]],
  chunks: ["chunks, if interleaved", null],
}
const signed = part => `${part < 0 ? "−" : "+"}${Math.abs(100 * part).toFixed(1)} %`

function command(name, c) {
  const given = ["dp", "pp", "cp", "tp"].filter(axis => c[axis] > 1).map(axis => `--${axis} ${c[axis]}`)
  if (c.sequence) given.push("--sequence-parallel")
  if (c.zero) given.push(`--zero ${c.zero}`)
  if (c.pp > 1 && c.schedule !== "1f1b") given.push(`--schedule ${c.schedule}`)
  if (c.pp > 1 && c.schedule === "interleaved") given.push(`--chunks ${c.chunks}`)
  given.push(`--microbatches ${c.microbatches}`)
  if (c.recompute !== "none") given.push(`--recompute ${c.recompute}`)
  return `python -m minitrain.planning.full.game ${name} ${given.join(" ")}`
}

function play(root) {
  const rounds = JSON.parse(document.getElementById("game-data").textContent)
  const choices = options => options.map(([key, title]) => `<option value="${key}">${title}</option>`).join("")
  const control = ([name, [label, options]]) =>
    `<label>${label} ${options ? `<select name="${name}">${choices(options)}</select>` : `<input name="${name}" type="number" min="1" step="1">`}</label>`
  const names = Object.keys(rounds).map(name => [name, `${name} on ${group(rounds[name].gpus)} ${rounds[name].gpu}`])
  root.innerHTML = `<form class="calculator-form">
    <fieldset><legend>The round</legend><div class="explorer-form"><label>model and GPUs <select name="round">${choices(names)}</select></label></div>
    <p class="game-about"></p></fieldset>
    <fieldset><legend>Your layout</legend><div class="explorer-form">${Object.entries(FIELDS).map(control).join("")}</div>
    <button type="button" class="game-button" name="beat">Fill in the layout to beat</button></fieldset></form>
    <div class="game-result" aria-live="polite"></div><div class="calculator-result game-pictures"></div>
    <p class="game-share"><label>Your score as a link <input readonly></label> <button type="button" class="game-button">Copy</button></p>`
  const form = root.querySelector("form"), field = form.elements, [result, pictures] = root.querySelectorAll(".game-result, .game-pictures")
  const share = root.querySelector(".game-share"), best = new Map()

  const shown = (name, value) => (name === "sequence" ? (value ? "yes" : "no") : String(value))
  const fill = layout => Object.keys(FIELDS).forEach(name => (field[name].value = shown(name, layout[name])))
  const asked = new URLSearchParams(location.search)
  field.round.value = asked.get("round") ?? "39b"
  if (field.round.value === "") field.round.value = "39b" // a round that does not exist
  fill(rounds[field.round.value].beat)
  for (const name of Object.keys(FIELDS)) {
    if (!asked.has(name)) continue
    field[name].value = asked.get(name)
    if (field[name].value === "") field[name].value = shown(name, rounds[field.round.value].beat[name]) // none that exists
  }

  function update() {
    const name = field.round.value, round = rounds[name]
    const c = Object.fromEntries(Object.entries(FIELDS).map(([key, [, options]]) => [key, options ? field[key].value : Number(field[key].value)]))
    Object.assign(c, { zero: Number(c.zero), sequence: c.sequence === "yes" })
    const query = { round: name, ...Object.fromEntries(Object.keys(FIELDS).map(key => [key, field[key].value])) }
    history.replaceState(null, "", `?${new URLSearchParams(query)}${location.hash}`)
    form.querySelector(".game-about").textContent =
      `${round.shape.layers} layers, width ${group(round.shape.hidden)}, ${round.shape.heads} heads, sequences of ${group(round.shape.positions)} ` +
      `tokens; a step has ${group(round.batch)} of them, and dp · pp · cp · tp must be ${group(round.gpus)}.`
    const wrong = problem(round, c)
    share.hidden = wrong !== ""
    if (wrong) {
      result.innerHTML = `<p class="calculator-problem">${wrong}</p>`
      return pictures.replaceChildren()
    }
    if (!best.has(name)) best.set(name, judge(round, round.beat)) // by the same model of time: a measured speed could not be compared
    const score = judge(round, c), beat = best.get(name), better = score.tokens / beat.tokens - 1, gb = size => size / 1e9
    const usable = (1 - round.room) * gb(round.machine.size)
    const speed = `${group(score.tokens)} tokens per second`
    result.innerHTML = score.fits
      ? `<p class="game-score"><strong>${speed}, ${signed(better)}</strong> of the layout to beat. A step takes ${score.step.toFixed(2)} s; MFU ${(100 * score.mfu).toFixed(1)} %.</p>`
      : `<p class="calculator-problem">No score: a rank holds ${gb(score.most).toFixed(1)} GB, and ${usable.toFixed(1)} of a GPU's ` +
        `${group(gb(round.machine.size))} GB can be used. Take a higher ZeRO, recomputation, or a larger tp or pp.</p>`
    const inGb = parts => Object.fromEntries(Object.entries(parts).map(([key, size]) => [key, gb(size)]))
    const width = max(320, min(720, root.clientWidth)) // letters keep their size on a phone
    const both = (mine, theirs, colors) => [["yours", mine], ["to beat", theirs]]
      .map(([title, parts]) => ({ title, parts, total: sum(Object.keys(colors).map(each => parts[each])) }))
    const held = both(inGb(score.held), inGb(beat.held), BYTES), times = both(score.bar, beat.bar, TIME)
    const end = rows => 1.02 * max(...rows.map(row => row.total))
    pictures.replaceChildren(
      bars(width, held, BYTES, max(end(held), 1.02 * usable), "GB", usable), legend(BYTES, {}, inGb(score.held), "GB"),
      bars(width, times, TIME, end(times), "s"), legend(TIME, MEANING, score.bar, "s"),
      Object.assign(document.createElement("pre"), { tabIndex: 0, innerHTML: "<code></code>" }),
    )
    pictures.querySelector("code").textContent = command(name, c)
    share.hidden = !score.fits
    share.querySelector("input").value = `I reached ${speed}, ${signed(better)}, in round ${name}: ${location.href}`
  }

  form.addEventListener("input", event => {
    if (event.target.name === "round") fill(rounds[field.round.value].beat)
    update()
  })
  field.beat.addEventListener("click", () => {
    fill(rounds[field.round.value].beat)
    update()
  })
  share.querySelector("button").addEventListener("click", () => {
    share.querySelector("input").select()
    navigator.clipboard?.writeText(share.querySelector("input").value)
  })
  form.addEventListener("submit", event => event.preventDefault())
  update()
}

document.querySelectorAll(".game").forEach(play)
