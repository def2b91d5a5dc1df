// The ranking of layouts: minitrain.costs.layout_search, under the same names.
// tests/site/test_calculator.py compares both on two hundred drawn cases.

import { bar, expertWidth, held, mlpWidth } from "./costs.js"

export const TIE = 0.08 // minitrain.planning.full.command.TIE

const ROOM = 0.1, LONG = 8192, SEQUENCES = [1, 2, 4, 8, 16]

export const divisors = number => Array.from({ length: number }, (_, i) => i + 1).filter(each => number % each === 0)

// Whether tp ranks can divide a layer; latent attention is planned without.
export function divides(shape, tp) {
  const keys = shape.kv_heads || shape.heads
  const widths = [shape.heads, mlpWidth(shape), shape.experts ? expertWidth(shape) : tp]
  return widths.every(width => width % tp === 0) && !(keys % tp && tp % keys) && (tp === 1 || !shape.latent)
}

// The sizes of dp, pp, cp, tp and ep that divide the GPUs, the batch and the model; tp stays within a node.
export function axes(shape, gpus, batch, perNode) {
  const found = [], most = shape.experts || shape.latent ? 1 : Math.floor(shape.positions / LONG), all = divisors(gpus)
  const contexts = all.filter(cp => cp === 1 || (cp <= most && shape.positions % (2 * cp) === 0))
  for (const tp of divisors(perNode).filter(ranks => divides(shape, ranks))) {
    for (const pp of all) for (const ep of divisors(shape.experts || 1)) for (const cp of contexts) {
      const dp = gpus / (tp * pp * cp)
      if (!Number.isInteger(dp) || pp > shape.layers || batch % dp || dp % ep) continue
      found.push({ dp, pp, cp, tp, ep, zero: 0, sequence: tp > 1 && shape.positions % (cp * tp) === 0, recompute: "none" })
    }
  }
  return found
}

// Whether each stage leaves a tenth of its GPUs' memory free. Without experts, none between holds more than the second.
export function fits(shape, cut, sizes, machine) {
  const all = Array.from({ length: cut.pp }, (_, stage) => stage)
  const stages = shape.experts || cut.pp < 4 ? all : [0, 1, cut.pp - 1]
  return stages.every(stage => {
    const total = Object.values(held(shape, cut, stage, sizes)).reduce((a, b) => a + b)
    return total <= (1 - ROOM) * machine.size
  })
}

// ZeRO, micro-batch and recomputation of a layout's axes, so far as they fit; recomputed only where it must be.
export function variants(shape, cut, batch, sizes, machine) {
  const found = [], most = cut.pp === 1 && !shape.experts ? 3 : 1
  for (let zero = 0; zero <= (cut.dp * cut.cp > 1 ? most : 0); zero++) {
    for (const sequences of SEQUENCES) {
      const microbatches = batch / cut.dp / sequences
      if (!Number.isInteger(microbatches)) break // nor does any larger one divide
      const way = { ...cut, zero, microbatches, sequences }
      const fitting = [way, { ...way, recompute: "full" }].find(each => fits(shape, each, sizes, machine))
      if (!fitting) break // a larger micro-batch holds more
      found.push(fitting)
    }
  }
  return found
}

// The fastest layouts that fit, of each choice of axes only its fastest variant: [{ seconds, cut }].
export function fastest(shape, gpus, batch, machine, sizes, fabric, reached, keep = 10) {
  const found = axes(shape, gpus, batch, fabric.per_node).flatMap(cut => {
    const each = variants(shape, cut, batch, sizes, machine).map(way => {
      const { compute, exposed, again, idle } = bar(shape, way, sizes, machine, fabric, reached)
      return { seconds: compute + again + idle + exposed, cut: way }
    })
    return each.length ? [each.reduce((best, other) => (other.seconds < best.seconds ? other : best))] : []
  })
  return found.sort((one, other) => one.seconds - other.seconds).slice(0, keep)
}

// How many of the first lie so close to the fastest that no order is known among them.
export function ties(found) {
  return found.filter(each => each.seconds <= (1 + TIE) * found[0].seconds).length
}
