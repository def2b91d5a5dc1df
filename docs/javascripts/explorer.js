// The pipeline explorer: draws timetables that docs/hooks/explorer.py has computed. What is known about a schedule
// stands in the data; here are sliders and rectangles only.

const KINDS = {
  F: "forward",
  B: "backward",
  I: "backward for the input",
  W: "backward for the weights",
}
const SCHEDULES = {
  naive: "naive",
  gpipe: "GPipe",
  "1f1b": "1F1B",
  interleaved: "interleaved 1F1B",
  "zb-h1": "zero bubble H1",
  "zb-h2": "zero bubble H2",
  "zb-v": "zero bubble V",
}
const WITHOUT_FLUSH = {
  "no-stashing": "no stashing",
  pipedream: "weight stashing",
  "vertical-sync": "vertical sync",
  "2bw": "PipeDream-2BW",
}
const TITLES = { ...SCHEDULES, ...WITHOUT_FLUSH }
const VERSIONS = 8 // colors of versions of the weights, which repeat
const CHUNKS = { interleaved: [2, 4], "zb-v": [2, 2] }
const ROW = 30, LEFT = 52, WIDTH = 900

function options(schedules) {
  return Object.entries(schedules)
    .map(([name, title]) => `<option value="${name}">${title}</option>`)
    .join("")
}

const FORM = `
  <label>schedule <select name="schedule">
    ${options(SCHEDULES)}<optgroup label="without a flush">${options(WITHOUT_FLUSH)}</optgroup></select></label>
  <label>compare with <select name="other"><option value="">none</option>
    ${options(SCHEDULES)}<optgroup label="without a flush">${options(WITHOUT_FLUSH)}</optgroup></select></label>
  <label>stages <output name="p_"></output><input type="range" name="p" min="2" max="8" value="4"></label>
  <label>micro-batches <output name="m_"></output><input type="range" name="m" min="1" max="16" value="8"></label>
  <label>chunks <output name="v_"></output><input type="range" name="v" min="1" max="4" value="2"></label>
  <label>backward / forward <output name="r_"></output><input type="range" name="r" min="1" max="3" value="2"></label>`

// Hatches, so that kinds differ without color; and the legend, which uses them.
const PATTERNS = `<defs>
  <pattern id="explorer-B" class="explorer-hatch" width="7" height="7" patternUnits="userSpaceOnUse"
    patternTransform="rotate(45)"><line y2="7"/></pattern>
  <pattern id="explorer-I" class="explorer-hatch" width="7" height="7" patternUnits="userSpaceOnUse"
    patternTransform="rotate(-45)"><line y2="7"/></pattern>
  <pattern id="explorer-W" class="explorer-hatch" width="6" height="6" patternUnits="userSpaceOnUse"
    ><circle cx="3" cy="3" r="1"/></pattern></defs>`

function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  if (text !== undefined) made.textContent = text
  parent?.append(made)
  return made
}

// Set a slider's range; without a choice it is disabled.
function limit(slider, smallest, largest, step = 1) {
  const value = slider.value
  Object.assign(slider, { min: smallest, max: largest, step, disabled: smallest === largest })
  slider.value = value // the browser takes the nearest that is allowed
  return Number(slider.value)
}

// How many micro-batches and chunks a schedule takes: [fewest, most, step], and [fewest, most].
function limits(schedule, p) {
  const groups = ["interleaved", "2bw"].includes(schedule) ? p : 1 // they take micro-batches in groups of p
  // 2BW has its steady state from the third batch on.
  const [fewest, most] = [schedule === "2bw" ? 3 * p : groups, schedule in WITHOUT_FLUSH ? 24 : 16]
  return [[fewest, most - (most % groups), groups], CHUNKS[schedule] ?? [1, 1]]
}

const within = (value, [smallest, largest, step = 1]) =>
  Math.min(largest, Math.max(smallest, smallest + step * Math.round((value - smallest) / step)))

// One timetable of a schedule's file. Its times are whole numbers in which a rank's forward of a micro-batch takes 2v;
// here that is 1. A bar is [stage, kind, micro-batch, start, end], with the version of the weights where there are any.
function timetableOf(record, v, r) {
  const { costs, starts, longest_span, ...bubbles } = record.ratios[r], unit = 2 * v
  const rows = record.actions.map((row, rank) =>
    row.split(" ").map((action, index) => {
      const [stage, kind, microbatch] = action.split(/([FBIW])/), start = starts[rank][index]
      const bar = [Number(stage), kind, microbatch, start / unit, (start + costs[kind]) / unit]
      return record.versions_kept ? [...bar, record.versions[rank][index]] : bar
    }),
  )
  return { ...record, ...bubbles, longest_span: longest_span / unit, rows }
}

const lasts = (timetable) => Math.max(...timetable.rows.flat().map((bar) => bar[4]))

function explore(root) {
  const part = `<div class="explorer-part"><p class="explorer-caption" aria-live="polite"></p>
    <div class="explorer-scroll" tabindex="0" role="group" aria-label="timetable"></div>
    <p class="explorer-legend" aria-hidden="true"></p></div>`
  root.innerHTML = `<form class="explorer-form">${FORM}</form>${part}`
  const form = root.querySelector("form"), field = form.elements
  const loaded = new Map()
  field.schedule.value = "1f1b"
  const isText = (name) => ["schedule", "other"].includes(name)
  // A slider would take the middle of its range for what is no number; here it keeps its default.
  const valid = [...new URLSearchParams(location.search)].filter(([name, value]) => isText(name) || (value.trim() && Number.isFinite(Number(value))))
  valid.forEach(([name, value]) => {
    if (["schedule", "other", "p", "m", "v", "r"].includes(name)) field[name].value = value
  })
  field.schedule.value ||= "1f1b" // an unknown name chooses nothing
  field.other.value ||= ""
  // A slider moves a value into its range, so it is set before the range is known, and once more after it.
  const asked = new URLSearchParams(valid)

  function load(file) {
    if (!loaded.has(file)) {
      const source = new URL(`${root.dataset.src}${file}.json`, document.baseURI)
      const answer = fetch(source).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      answer.catch(() => loaded.delete(file)) // so that the next choice tries again
      loaded.set(file, answer)
    }
    return loaded.get(file)
  }

  async function update() {
    const schedule = field.schedule.value, other = field.other.value
    const p = Number(field.p.value)
    const [batches, chunks] = limits(schedule, p)
    limit(field.m, ...batches)
    // Where only the second schedule has a choice of chunks, the slider is its.
    const others = other ? limits(other, p)[1] : chunks
    limit(field.v, ...([chunks, others].find(([fewest, most]) => fewest < most) ?? chunks))
    for (const name of ["m", "v"]) {
      if (asked.has(name)) field[name].value = asked.get(name)
      asked.delete(name)
    }
    const m = Number(field.m.value), r = Number(field.r.value), free = Number(field.v.value), v = within(free, chunks)
    Object.entries({ p, m, v: free, r }).forEach(([name, value]) => (field[`${name}_`].value = value))
    const choice = new URLSearchParams({ schedule, ...(other && { other }), p, m, v: free, r }).toString()
    if (root.dataset.wanted !== undefined || location.search) history.replaceState(null, "", `?${choice}${location.hash}`)
    root.dataset.wanted = choice
    const shown = [[schedule, m, v]]
    if (other) {
      const [batches, chunks] = limits(other, p)
      shown.push([other, within(m, batches), within(free, chunks)])
    }
    const parts = [...root.querySelectorAll(".explorer-part")]
    parts.slice(shown.length).forEach((each) => each.remove())
    if (parts.length < shown.length) parts.at(-1).insertAdjacentHTML("afterend", part)
    const places = root.querySelectorAll(".explorer-part")
    try {
      const files = await Promise.all(shown.map(([name]) => load(name)))
      if (root.dataset.wanted !== choice) return // another choice was made meanwhile
      const timetables = shown.map(([, m, v], index) => timetableOf(files[index][[p, m, v].join()], v, r))
      const end = Math.max(...timetables.map(lasts)) // both have one scale
      shown.forEach(([name, m, v], index) => show(places[index], timetables[index], TITLES[name], p, m, v, end))
    } catch (error) {
      if (root.dataset.wanted !== choice) return
      root.querySelectorAll(".explorer-part > *").forEach((each) => each.replaceChildren()) // no timetable of another choice
      places[0].querySelector(".explorer-caption").textContent =
        `The timetables could not be loaded (${error}). Choose again to try once more; ` +
        "a copy on your disk must be opened through a web server: make serve."
    }
  }

  function show(place, timetable, title, p, m, v, end) {
    const [caption, scroll, legend] = ["caption", "scroll", "legend"].map((name) => place.querySelector(`.explorer-${name}`))
    const peaks = timetable.peak_in_flight
    const held = new Set(peaks).size === 1 ? `${peaks[0]} on every rank` : `${peaks.join(", ")} on ranks 0 to ${p - 1}`
    const percent = (part) => `${(100 * part).toFixed(1)} %`
    caption.textContent =
      `${title}, ${p} stages, ${m} micro-batch${m > 1 ? "es" : ""}${v > 1 ? `, ${v} chunks a rank` : ""}: ` +
      `${timetable.versions_kept ? "the whole run" : "a step"} takes ${Number(timetable.longest_span.toFixed(2))}. ` +
      `The bubble is ${percent(timetable.bubble_over_total)} of the total, ${percent(timetable.bubble_over_ideal)} over ` +
      `the ideal. Held at most: ${held}${v > 1 ? " (chunks of micro-batches)" : ""}.` +
      (timetable.versions_kept ? aboutVersions(timetable) : "")
    scroll.replaceChildren(draw(timetable, p, v, end, caption.textContent))
    const kinds = new Set(timetable.rows.flat().map((bar) => bar[1]))
    const plain = timetable.versions_kept ? "none" : undefined // color belongs to versions, so kinds have none
    const inOrder = [...kinds].sort((a, b) => "FBIW".indexOf(a) - "FBIW".indexOf(b))
    legend.replaceChildren(...inOrder.map((kind) => entry(kind, plain)))
    const labels = [...scroll.querySelectorAll(".explorer-bar text")]
    if (v > 1 && labels.length) legend.append(`letter: chunk, a the first`)
    if (!labels.length) legend.append("point at a bar for its micro-batch")
    const versions = timetable.rows.flat().map((bar) => bar[5] ?? 0)
    const newest = Math.max(...versions)
    for (let version = 0; timetable.versions_kept && version <= Math.min(newest, VERSIONS - 1); version++) {
      const repeated = version + VERSIONS <= newest ? `, ${version + VERSIONS}` : ""
      legend.append(entry("F", version, `${version ? "" : "version "}${version}${repeated}`))
    }
  }

  // What the caption adds where weights change between the actions.
  function aboutVersions(timetable) {
    const kept = timetable.versions_kept.join(", "), staleness = timetable.staleness.join(", ")
    const mixed = timetable.mixed
      ? ` ${timetable.mixed} backwards find other weights than their forward.`
      : ` Their last gradients are ${staleness} updates old.`
    return ` Ranks keep ${kept} versions of their weights.${mixed}`
  }

  function draw(timetable, p, v, end, label) {
    const x = (time) => LEFT + (time * (WIDTH - LEFT)) / end
    const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${p * ROW}`, role: "img", "aria-label": label })
    svg.innerHTML = PATTERNS
    timetable.rows.forEach((row, rank) => {
      const y = rank * ROW + 2, height = ROW - 4
      element("text", { x: 0, y: y + 18, class: "explorer-rank" }, svg, `rank ${rank}`)
      element("rect", { x: LEFT, y, width: WIDTH - LEFT, height, class: "explorer-idle" }, svg)
      const stages = timetable.placement.flatMap((place, stage) => (place === rank ? [stage] : []))
      for (const [stage, kind, microbatch, start, stop, version] of row) {
        const chunk = stages.indexOf(stage), width = x(stop) - x(start) - 1
        const look = version === undefined ? {} : { "data-version": version % VERSIONS }
        const bar = element("g", { class: `explorer-bar explorer-${kind}`, "data-chunk": chunk, ...look }, svg)
        element("rect", { x: x(start), y, width, height, rx: 2 }, bar)
        if (kind !== "F") element("rect", { x: x(start), y, width, height, rx: 2, fill: `url(#explorer-${kind})` }, bar)
        const label = microbatch + (v > 1 ? "abcd"[chunk] : "")
        if (width >= 6.5 * label.length) {
          element("text", { x: x(start) + width / 2, y: y + 18, "text-anchor": "middle" }, bar, label)
        }
        const where = v > 1 ? `, chunk ${"abcd"[chunk]} (stage ${stage})` : ""
        const weights = version === undefined ? "" : `, weights of version ${version}`
        const when = [start, stop].map((time) => Number(time.toFixed(2)))
        element("title", {}, bar, `${KINDS[kind]} of micro-batch ${microbatch}${where}${weights}, from ${when[0]} to ${when[1]}`)
      }
    })
    return svg
  }

  function entry(kind, version, title) {
    const made = document.createElement("span")
    const svg = element("svg", { viewBox: "0 0 26 14", width: 26, height: 14 }, made)
    const look = version === undefined ? {} : { "data-version": version }
    const bar = element("g", { class: `explorer-bar explorer-${kind}`, "data-chunk": 0, ...look }, svg)
    element("rect", { width: 26, height: 14, rx: 2 }, bar)
    if (kind !== "F") element("rect", { width: 26, height: 14, rx: 2, fill: `url(#explorer-${kind})` }, bar)
    made.append(` ${title ?? KINDS[kind]} `)
    return made
  }

  form.addEventListener("input", update)
  form.addEventListener("submit", (event) => event.preventDefault())
  update()
}

document.querySelectorAll(".explorer").forEach(explore)
