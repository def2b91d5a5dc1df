// The game's referee, minitrain.planning.full.game's, in the browser. What a rank holds and computes is made of the formulas of
// costs.js; pipelines are simulated. tests/site/test_game_page.py compares both referees.

import {
  endsKept, layerCore, layerCounts, layerKept, layerProducts, message, overlap, parameters, pieces, ring, rows, stateBytes,
  stepFlops, utilization, wait,
} from "./costs.js"

const ADAM = 30, LOSS = 20 // minitrain.costs.time_bar: bytes that AdamW moves for a parameter, and the loss for a logit
const ITEM = 2, STATES = 12 // bytes of a number in bfloat16, and of AdamW's states with the copy in float32
const COST = { F: 0, B: 1, I: 1, W: 2 }
const sum = numbers => numbers.reduce((total, number) => total + number, 0)
const { floor, max, min } = Math

export const stagesOf = c => (c.pp === 1 ? 1 : c.pp * (c.schedule === "interleaved" ? c.chunks : 1))

// minitrain.pipeline_parallel.schedules: of each rank its actions [stage, kind, micro-batch], in order
export function timetable(c, microbatches) {
  const { pp: ranks, schedule } = c, chunks = stagesOf(c) / ranks, late = schedule === "zb-h2" ? 2 : schedule === "zb-h1" ? 1 : 0
  return Array.from({ length: ranks }, (_, rank) => {
    const forwards = [], backwards = []
    const group = schedule === "interleaved" ? ranks : microbatches
    for (let first = 0; first < microbatches; first += group) {
      for (let chunk = 0; chunk < chunks; chunk++) {
        for (let i = first; i < first + group; i++) {
          forwards.push([chunk * ranks + rank, "F", i])
          backwards.push([(chunks - 1 - chunk) * ranks + rank, late ? "I" : "B", i])
        }
      }
    }
    const behind = ranks - 1 - rank
    const warmup = {
      gpipe: microbatches, "1f1b": behind, interleaved: 2 * behind + (chunks - 1) * ranks, "zb-h1": behind, "zb-h2": 2 * behind,
    }
    const ahead = min(ranks === 1 ? 0 : warmup[schedule], forwards.length)
    const row = forwards.slice(0, ahead)
    backwards.forEach((backward, index) => {
      if (ahead + index < forwards.length) row.push(forwards[ahead + index])
      row.push(backward)
      // A backward for the weights comes rank · late micro-batches after the one for the input.
      if (late && index >= rank * late) row.push([rank, "W", index - rank * late])
    })
    for (let i = max(0, microbatches - rank * late); late && i < microbatches; i++) row.push([rank, "W", i])
    return row
  })
}

// minitrain.pipeline_parallel.full.simulator: from the first start to the last end. An action begins when its rank is free and
// its input has arrived; `times` has for each stage the seconds of F, B or I, and W.
export function makespan(actions, times, microbatches) {
  const stages = times.length, free = actions.map(() => 0), next = actions.map(() => 0)
  const ends = { F: new Float64Array(stages * microbatches).fill(-1), B: new Float64Array(stages * microbatches).fill(-1) }
  const arrived = (kind, stage, i) => (stage < 0 || stage === stages ? 0 : ends[kind][stage * microbatches + i])
  let left = sum(actions.map(row => row.length))
  while (left) {
    const before = left
    actions.forEach((row, rank) => {
      for (; next[rank] < row.length; next[rank]++, left--) {
        const [stage, kind, i] = row[next[rank]], at = stage * microbatches + i
        const input = kind === "F" ? arrived("F", stage - 1, i) : kind === "W" ? 0 : arrived("B", stage + 1, i)
        if (input < 0) return // not there yet: the next rank goes on
        free[rank] = max(free[rank], input) + times[stage][COST[kind]]
        if (kind !== "W") ends[kind === "F" ? "F" : "B"][at] = free[rank]
      }
    })
    if (left === before) throw new Error("no rank can go on")
  }
  return max(...free)
}

const stagesOn = (c, rank) => Array.from({ length: stagesOf(c) / c.pp }, (_, chunk) => chunk * c.pp + rank)
const own = (shape, c) => ({ ...shape, positions: floor(shape.positions / c.cp) })
const sequencesOf = (round, c) => round.batch / c.dp / c.microbatches
// Parameters of a rank, over all its stages.
const heldBy = (shape, c, rank) => sum(stagesOn(c, rank).map(stage => parameters(shape, { ...c, pp: stagesOf(c), ep: 1 }, stage)[0]))

// As many micro-batches as fill the pipeline: minitrain.planning.full.plan_time.few
const few = c => (c.schedule === "gpipe" ? c.microbatches : min(c.microbatches, 4 * c.pp))

// minitrain.planning.plan.held, but for padding: bytes on a pipeline rank, by what they are
export function heldOn(round, c, rank, actions) {
  const shape = own(round.shape, c), stages = stagesOf(c), counts = layerCounts(shape.layers, stages), b = sequencesOf(round, c)
  const found = stateBytes(c.zero, heldBy(round.shape, c, rank), c.dp * c.cp, ITEM, round.gradient, STATES)
  const [one, whole] = [c.recompute, "none"].map(how => layerKept(b, shape, c.tp, c.sequence, how, ITEM))
  const kept = [], output = []
  for (const stage of stagesOn(c, rank)) {
    const [numbers, last] = endsKept(b, shape, stage === 0, stage === stages - 1, c.tp, c.sequence, ITEM)
    output[stage] = last
    kept[stage] = numbers + last + counts[stage] * one
  }
  let now = 0, most = 0 // minitrain.costs.composition_kept.peak_kept
  for (const [stage, kind] of actions) {
    // Tensor-parallel layers do their whole backward in I, so that nothing is left for W.
    const ends = c.tp === 1 ? "BW" : "BI"
    if (kind === "F") most = max(most, (now += kept[stage]))
    if (kind === "B" || kind === "I") most = max(most, now - output[stage] + whole - one)
    if (ends.includes(kind)) now -= kept[stage]
  }
  return { ...found, activations: most }
}

// minitrain.planning.full.time_model.stage_seconds: of each stage [F, B or I, W] for a micro-batch
export function stageSeconds(round, c, recompute) {
  const { shape, machine, reached } = round, b = sequencesOf(round, c), stages = stagesOf(c)
  const tokens = floor((b * shape.positions) / c.cp), speed = reached.products * machine.flops
  const core = layerCore(b, shape, c.tp, c.cp) / 2 / (reached.core * machine.flops) // masked scores are left out
  const products = layerProducts(b, shape, false, c.tp, c.cp) / speed
  const sharers = c.sequence ? c.tp : (2 * c.tp) / (1 + c.tp)
  const moved = (reached.moved * tokens * shape.hidden) / sharers / machine.memory
  const logits = tokens * rows(shape.vocabulary, c.tp), head = (2 * logits * shape.hidden) / speed
  const loss = (LOSS * logits) / machine.memory
  const layer = products + core + moved / 3, again = { none: 0, selective: core, full: layer }[recompute]
  const late = c.pp > 1 && c.schedule.startsWith("zb") && c.tp === 1
  return layerCounts(shape.layers, stages).map((layers, stage) => {
    const last = stage === stages - 1 ? 1 : 0, weight = layers * products + last * head
    const input = layers * (products + 2.5 * core + (2 / 3) * moved + again) + last * (head + (2 / 3) * loss)
    return [layers * layer + last * (head + loss / 3), late ? input : input + weight, late ? weight : 0]
  })
}

// minitrain.planning.full.time_model._seconds_sent, of a model without experts: seconds by axis
function messages(round, c, rank) {
  const { shape, machine, fabric } = round, m = c.microbatches, stages = stagesOf(c), mine = stagesOn(c, rank), sharers = c.dp * c.cp
  const layers = sum(mine.map(stage => layerCounts(shape.layers, stages)[stage]))
  const [first, last] = [mine.includes(0) ? 1 : 0, mine.includes(stages - 1) ? 1 : 0]
  const tokens = sequencesOf(round, c) * floor(shape.positions / c.cp), wide = tokens * shape.hidden * ITEM
  const once = (bytes, ranks, stride) => (((ranks - 1) / ranks) * bytes) / ring(fabric, machine, ranks, stride)
  const forwards = c.recompute === "full" ? 2 : 1

  let tensor = 0
  if (c.tp > 1) {
    const loss = last * 3 * 4 * c.tp * tokens
    const norms = (6 * layers * shape.hidden + 2 * last * shape.hidden) * round.gradient / (c.zero ? sharers : 1)
    // All-reduces are two rings; with sequence parallelism backward gathers once more.
    const rings = c.sequence ? layers * (4 * forwards + 6) + 2 * first + 3 * last : 2 * (layers * (2 * forwards + 2) + first + last)
    tensor = once(m * (rings * wide + loss) + (c.sequence ? 2 * norms : 0), c.tp, 1)
    tensor += (8 + 4 * (forwards - 1)) * layers * m * wait(fabric, c.tp, 1)
  }
  const width = floor((floor(shape.hidden / shape.heads) * (shape.kv_heads || shape.heads)) / c.tp)
  const times = c.recompute === "none" ? 2 : 3
  const keys = m * layers * (c.cp - 1) * 2 * tokens * width * (times * ITEM + 4)

  const count = heldBy(shape, c, rank), everywhere = sum(parameters(shape, { ...c, pp: 1, tp: 1, ep: 1 }, 0)) / (c.tp * c.pp)
  const [reduced, gathered] = [[2, 0], [1, 1], [m, 1], [m, 2 * m]][c.zero]
  let gradients = once(reduced * round.gradient * count, sharers, c.tp), weights = once(gathered * ITEM * count, sharers, c.tp)
  if (sharers > 1) {
    const parts = c.zero >= 2 ? layers + 1 : pieces(everywhere, sharers, layers)
    const around = [2, 2, m + 1, 3 * m][c.zero] * parts * wait(fabric, sharers, c.tp), longer = 1 + around / (gradients + weights)
    gradients *= longer
    weights *= longer
  }
  const crossing = mine.length * 2 - first - last // boundaries of the rank's stages, each crossed forward and back
  let boundary = c.pp > 1 ? (m * crossing * wide) / (c.sequence ? c.tp : 1) : 0
  if (shape.tied && c.pp > 1 && (rank === 0 || rank === c.pp - 1)) boundary += rows(shape.vocabulary, c.tp) * shape.hidden * round.gradient
  const optimizer = (ADAM * everywhere) / (c.zero ? sharers : 1) / machine.memory
  return {
    tensor, gradients, weights, optimizer,
    keys: c.cp > 1 ? keys / message(fabric, machine, c.cp, c.tp) : 0,
    boundary: boundary / message(fabric, machine, c.pp, c.tp * sharers),
    cores: (m * layers * 3.5 * layerCore(sequencesOf(round, c), shape, c.tp, c.cp)) / 2 / (round.reached.core * machine.flops),
  }
}

// minitrain.planning.full.time_model.step_time: the bar of a step, in seconds
export function stepTime(round, c) {
  const m = c.microbatches, of = rank => stagesOn(c, rank)
  const workOf = times => Array.from({ length: c.pp }, (_, rank) => m * sum(of(rank).map(stage => sum(times[stage]))))
  const times = stageSeconds(round, c, c.recompute), work = workOf(times), busiest = work.indexOf(max(...work))
  let compute = max(...workOf(stageSeconds(round, c, "none")))
  const again = work[busiest] - compute
  const idle = c.pp > 1 ? makespan(timetable(c, m), times, m) - work[busiest] : 0
  const forward = compute / 3, backward = (2 / 3) * compute + again, sent = messages(round, c, busiest)
  const data = c.zero === 3
    ? [[sent.weights / 2, forward], [sent.weights / 2 + sent.gradients, backward]]
    : [[sent.gradients, backward / (c.zero === 2 ? 1 : m)], [sent.weights, forward / m]]
  const boundary = [sent.boundary, m > 1 ? compute + again : 0], keys = [sent.keys, c.cp > 1 ? sent.cores : 0]
  const [hidden, exposed] = overlap(...data, boundary, keys, [sent.tensor, 0])
  compute += sent.optimizer
  return { compute, hidden, exposed: exposed + round.reached.contended * hidden, again, idle }
}

// What is wrong with a layout, in one sentence; "" if it can be judged.
export function problem(round, c) {
  const { shape } = round, ranks = c.dp * c.pp * c.cp * c.tp, stages = stagesOf(c), said = number => number.toLocaleString("en-US")
  const wrong = ["dp", "pp", "cp", "tp", "microbatches", "chunks"].find(name => !(Number.isInteger(c[name]) && c[name] >= 1))
  if (wrong) return `${wrong}: write a whole number from 1 on.`
  if (ranks !== round.gpus) return `dp · pp · cp · tp are ${said(ranks)} ranks, and the round has ${said(round.gpus)} GPUs.`
  if (shape.heads % c.tp) return `tp = ${c.tp} does not divide ${shape.heads} heads.`
  if ((shape.kv_heads || shape.heads) % c.tp) return `tp = ${c.tp} does not divide ${shape.kv_heads} heads of keys and values; here take fewer ranks.`
  if (c.cp > 1 && shape.positions % (2 * c.cp)) return `cp = ${c.cp} ranks hold two chunks each, which ${shape.positions} positions do not give; take a cp whose double divides them.`
  if (c.sequence && c.tp === 1) return "Sequence parallelism cuts what tensor-parallel ranks hold alike; take tp of 2 or more."
  if (c.sequence && (shape.positions / c.cp) % c.tp) return `Sequence parallelism cuts ${shape.positions / c.cp} positions, which tp = ${c.tp} does not divide.`
  if (stages > shape.layers) return `${stages} stages are more than the ${shape.layers} layers.`
  if (c.schedule === "interleaved" && c.pp > 1 && c.microbatches % c.pp) return `The interleaved schedule takes micro-batches in groups of pp = ${c.pp}.`
  if (round.batch % (c.dp * c.microbatches)) return `${said(round.batch)} sequences do not divide by dp · micro-batches = ${said(c.dp * c.microbatches)}; take a product that divides them.`
  if (c.zero >= 2 && c.pp > 1) return `ZeRO ${c.zero} with a pipeline would send gradients with every micro-batch; take ZeRO 1.`
  return ""
}

// minitrain.planning.full.game.play: { held, bar, tokens, mfu }, of a layout without a problem; held of the fullest rank
export function judge(round, c) {
  const each = timetable(c, few(c)).map((actions, rank) => heldOn(round, c, rank, actions)), total = parts => sum(Object.values(parts))
  const held = each.reduce((most, parts) => (total(parts) > total(most) ? parts : most))
  const bar = stepTime(round, c), step = bar.compute + bar.again + bar.idle + bar.exposed
  const tokens = (round.batch * round.shape.positions) / step
  const mfu = utilization(stepFlops(round.batch, round.shape), step, round.gpus, round.machine.flops)
  return { held, most: total(held), fits: total(held) <= (1 - round.room) * round.machine.size, bar, step, tokens, mfu }
}
