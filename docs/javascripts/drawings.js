// What the calculator draws: bars of memory and of time, with one color for each kind.

export const BYTES = { "parameters": "#0072b2", "gradients": "#e69f00", "optimizer states": "#cc79a7", "activations": "#f0e442" }
export const TIME = { compute: "#56b4e9", again: "#b5dcf3", exposed: "#d55e00", idle: "#bbbbbb" }
export const MEANING = {
  compute: "computing", again: "computing again", exposed: "waiting for messages", idle: "idle in the pipeline",
}
const LEFT = 76, ROW = 30

export const group = number => Math.round(number).toLocaleString("en-US")
export const short = number => (number >= 100 ? group(number) : String(Number(number.toPrecision(3))))

export function element(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  if (text !== undefined) made.textContent = text
  parent?.append(made)
  return made
}

// Parts one after the other, from `from` on; `x` makes pixels of values. Gives where they end.
function stack(svg, colors, parts, { x, y, height, unit, names = {} }) {
  let from = 0
  for (const [name, color] of Object.entries(colors)) {
    const width = Math.max(0, x(from + parts[name]) - x(from))
    const part = element("rect", { x: x(from), y, width, height, fill: color, stroke: "var(--md-default-bg-color)" }, svg)
    element("title", {}, part, `${names[name] ?? name}: ${short(parts[name])} ${unit}`)
    from += parts[name]
  }
  return from
}

// Bars of parts, one below the other, with a line where the limit is.
export function bars(width, rows, colors, end, unit, limit) {
  const height = rows.length * ROW + (limit ? 18 : 0)
  const x = value => LEFT + (value * (width - LEFT - 70)) / end
  const said = rows.map(row => `${row.title}: ${short(row.total)} ${unit}`).join("; ")
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said })
  rows.forEach((row, index) => {
    const y = index * ROW + 3
    element("text", { x: 0, y: y + 17, class: "explorer-rank" }, svg, row.title)
    const end = stack(svg, colors, row.parts, { x, y, height: ROW - 6, unit })
    element("text", { x: x(end) + 5, y: y + 17, class: "explorer-rank" }, svg, `${short(row.total)} ${unit}`)
  })
  if (limit) {
    element("line", { x1: x(limit), x2: x(limit), y1: 0, y2: rows.length * ROW, class: "calculator-limit" }, svg)
    const text = { x: x(limit), y: height - 4, "text-anchor": "middle", class: "explorer-rank" }
    element("text", text, svg, `${short(limit)} ${unit}`)
  }
  return svg
}

// A bar that fits into a cell of a table.
export function small(colors, parts, end, unit, names = {}) {
  const said = Object.keys(colors).map(name => `${names[name] ?? name} ${short(parts[name])} ${unit}`).join(", ")
  const svg = element("svg", { viewBox: "0 0 120 14", width: 120, height: 14, role: "img", "aria-label": said })
  stack(svg, colors, parts, { x: value => (value * 120) / end, y: 0, height: 14, unit, names })
  return svg
}

// Which color is what; with `parts` also how much.
export function legend(colors, names = {}, parts = null, unit = "") {
  const made = document.createElement("p")
  made.className = "explorer-legend"
  for (const [name, color] of Object.entries(colors)) {
    const entry = document.createElement("span")
    const svg = element("svg", { viewBox: "0 0 26 14", width: 26, height: 14, "aria-hidden": "true" }, entry)
    element("rect", { width: 26, height: 14, rx: 2, fill: color }, svg)
    entry.append(` ${names[name] ?? name}${parts ? `: ${short(parts[name])} ${unit}` : ""}`)
    made.append(entry)
  }
  return made
}
