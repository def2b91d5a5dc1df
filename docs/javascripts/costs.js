// The formulas of the calculator: those of minitrain.costs.layout and of what it calls, under the same names.
// tests/site/test_calculator.py compares both on a thousand random inputs.

const sum = numbers => numbers.reduce((total, number) => total + number, 0)
const floor = Math.floor
const ADAM = 30, LOSS = 20 // bytes that AdamW moves for a parameter, and the loss for a logit

// minitrain.costs.composition.layer_counts
export function layerCounts(layers, stages) {
  return Array.from({ length: stages }, (_, stage) => floor(layers / stages) + (stage < layers % stages ? 1 : 0))
}

// minitrain.costs.layout.mixtures: of so many layers the last has experts, but not of the first ones
export function mixtures(shape, pp, stage) {
  if (!shape.experts) return 0
  const counts = layerCounts(shape.layers, pp), before = sum(counts.slice(0, stage))
  const until = layer => floor(Math.max(layer, shape.dense_first) / shape.mixture_every)
  return until(before + counts[stage]) - until(before)
}

// minitrain.costs.vocabulary.rows
export function rows(vocabulary, ranks) {
  return Math.ceil(vocabulary / ranks)
}

// Widths of minitrain.costs.composition.Shape
export const mlpWidth = shape => shape.inner || 4 * shape.hidden
export const expertWidth = shape => shape.expert_inner || mlpWidth(shape)
const head = shape => {
  if (shape.latent) return shape.latent.plain + shape.latent.rotated
  return shape.head_size || floor(shape.hidden / shape.heads)
}
const queryWidth = shape => shape.heads * head(shape)
const mixedWidth = shape => shape.heads * (shape.latent ? shape.latent.value : head(shape))
const kvWidth = shape => head(shape) * (shape.kv_heads || shape.heads)
const kvPieces = (shape, tensor) => Math.min(tensor, shape.kv_heads || shape.heads)
const kvOwn = (shape, tensor) => floor(kvWidth(shape) / kvPieces(shape, tensor))

// Elements of an MLP's matrices and biases on a tensor-parallel rank.
function mlpParts(shape, width, tensor) {
  const ways = shape.gated ? 2 : 1, matrix = floor((shape.hidden * width) / tensor)
  return [(ways + 1) * matrix, shape.biases === "all" ? ways * floor(width / tensor) + shape.hidden : 0]
}

function attentionParts(shape, tensor) {
  const h = shape.hidden, cut = (inputs, outputs, ranks = tensor) => floor((inputs * outputs) / ranks)
  if (shape.latent) {
    const { queries, keys, plain, rotated, value } = shape.latent, a = shape.heads
    const down = (queries + keys + rotated) * h
    return [down + cut(queries, a * (plain + rotated)) + cut(keys, a * (plain + value)) + cut(a * value, h), queries + keys]
  }
  const pieces = kvPieces(shape, tensor), width = queryWidth(shape), own = kvWidth(shape)
  let vectors = shape.biases === "none" ? 0 : floor(width / tensor) + 2 * floor(own / pieces)
  vectors += (shape.biases === "all" ? h : 0) + (shape.qk_norm ? 2 * head(shape) : 0)
  return [cut(h, width) + 2 * cut(h, own, pieces) + cut(width, h), vectors]
}

// Of a layer and of one expert: elements of matrices and of vectors. minitrain.costs.composition.layer_parameters
function layerParts(shape, mixture, tensor) {
  const [matrices, vectors] = attentionParts(shape, tensor), norms = (shape.rms ? 2 : 4) * shape.hidden
  const width = mixture ? shape.shared_experts * expertWidth(shape) : mlpWidth(shape)
  const [inner, biases] = width ? mlpParts(shape, width, tensor) : [0, 0]
  const router = mixture ? shape.hidden * shape.experts : 0
  const balance = mixture && shape.router_bias ? shape.experts : 0
  const expert = mixture ? mlpParts(shape, expertWidth(shape), tensor) : [0, 0]
  return { all: [matrices + inner + router, vectors + norms + biases + balance], expert }
}

// minitrain.costs.layout.layer_shares: [shared, of experts]
export function layerShares(shape, mixture, tensor, own) {
  const { all, expert } = layerParts(shape, mixture, tensor)
  return [sum(all), own * sum(expert)]
}

// minitrain.costs.layout.parameters: [shared, of experts]
export function parameters(shape, cut, stage) {
  const h = shape.hidden, last = stage === cut.pp - 1
  const layers = layerCounts(shape.layers, cut.pp)[stage], routed = mixtures(shape, cut.pp, stage)
  const own = Math.ceil(shape.experts / cut.ep), table = rows(shape.vocabulary, cut.tp) * h
  let [shared, ofExperts] = [0, 0]
  for (const [mixture, count] of [[false, layers - routed], [true, routed]]) {
    const one = layerShares(shape, mixture, cut.tp, own)
    shared += count * one[0]
    ofExperts += count * one[1]
  }
  if (stage === 0) shared += table + (shape.learned ? shape.positions * h : 0)
  if (last) shared += (shape.rms ? 1 : 2) * h + (stage > 0 || !shape.tied ? table : 0)
  return [shared, ofExperts]
}

// minitrain.costs.zero.state_bytes
export function stateBytes(stage, count, ranks, parameter, gradient, optimizer) {
  const part = (size, first) => (size * count) / (stage >= first ? ranks : 1)
  return { "parameters": part(parameter, 3), "gradients": part(gradient, 2), "optimizer states": part(optimizer, 1) }
}

// minitrain.costs.composition_kept.layer_kept, with fused attention and without dropout
export function layerKept(batch, shape, tensor, sequence, recompute, item) {
  const seq = shape.positions, outside = sequence ? tensor : 1, wider = Math.max(4, item), tokens = batch * seq
  const wide = tokens * shape.hidden * item, few = tokens * item, inner = few * mlpWidth(shape)
  if (recompute === "full") return floor(wide / outside)
  const statistics = shape.rms ? wider * tokens : 2 * few
  const whole = [wide, statistics, wide, wide, statistics, wide] // two norms and the inputs of attention and MLP
  const width = queryWidth(shape), keys = kvOwn(shape, tensor) * tensor
  const divided = [few * mixedWidth(shape), inner * (shape.gated ? 2 : 1), inner]
  if (shape.qk_norm) divided.push(tokens * (item * (width + keys) + floor((wider * (width + keys)) / head(shape))))
  if (shape.latent) {
    const { queries, keys: narrow, rotated, value } = shape.latent
    whole.push(few * (2 * queries + 2 * narrow + rotated) + 2 * wider * tokens)
    divided.push(few * (2 * width + shape.heads * value))
  } else divided.push(few * (width + 2 * keys))
  if (recompute !== "selective") divided.push(wider * tokens * shape.heads) // sums of the softmax
  const kept = sum(whole.map(size => floor(size / outside))) + sum(divided.map(size => floor(size / tensor)))
  const angles = shape.latent ? shape.latent.rotated : head(shape)
  return kept + (shape.learned ? 0 : wider * seq * 3 * floor(angles / 2))
}

// minitrain.costs.composition_kept.mixture_kept
export function mixtureKept(batch, shape, routes, tensor, sequence, recompute, item) {
  const dense = layerKept(batch, shape, tensor, sequence, recompute, item)
  if (recompute === "full") return dense
  const tokens = batch * shape.positions, inside = shape.gated ? 3 : 2, own = expertWidth(shape)
  const wide = tokens * shape.hidden * item, gathered = sequence ? wide - floor(wide / tensor) : 0
  const mlp = floor((inside * tokens * (mlpWidth(shape) - shape.shared_experts * own) * item) / tensor)
  return dense - mlp + gathered + (2 * shape.hidden + floor((inside * own) / tensor)) * routes * item
}

// minitrain.costs.composition_kept.ends_kept: [embedding, output], without dropout
export function endsKept(batch, shape, first, last, tensor, sequence, item) {
  const tokens = batch * shape.positions, outside = sequence ? tensor : 1
  const positions = shape.learned ? floor((8 * shape.positions) / outside) : 0
  const numbers = first ? (8 + (tensor > 1 ? 1 : 0)) * tokens + positions : 0
  if (!last) return [numbers, 0]
  const statistics = shape.rms ? Math.max(4, item) : 2 * item
  const wide = floor(((2 * shape.hidden * item + statistics) * tokens) / outside)
  const logits = rows(shape.vocabulary, tensor) * tokens
  if (tensor === 1) return [numbers, wide + 8 * tokens + Math.max(4, item) * (logits + 1)]
  return [numbers, wide + item * logits + (2 * Math.max(4, item) + 8 + 2) * tokens + 8]
}

// minitrain.costs.pipeline.one_f_one_b_in_flight
export function oneFOneBInFlight(ranks, microbatches, rank) {
  return Math.min(microbatches, ranks - rank)
}

// minitrain.costs.layout.held
export function held(shape, cut, stage, sizes) {
  const [shared, experts] = parameters(shape, cut, stage)
  const each = [sizes.parameter, sizes.gradient, sizes.optimizer]
  const found = stateBytes(cut.zero, shared, cut.dp * cut.cp, ...each)
  const ofExperts = stateBytes(cut.zero, experts, Math.max(1, floor(cut.dp / cut.ep)), ...each)
  for (const name in found) found[name] += ofExperts[name]
  const own = { ...shape, positions: floor(shape.positions / cut.cp) }
  const layers = layerCounts(shape.layers, cut.pp)[stage], routed = mixtures(shape, cut.pp, stage)
  const kept = recompute => {
    const how = [cut.tp, cut.sequence, recompute, sizes.parameter]
    const mixture = routed ? mixtureKept(cut.sequences, own, cut.sequences * own.positions * shape.chosen, ...how) : 0
    return [layerKept(cut.sequences, own, ...how), mixture]
  }
  const [dense, mixture] = kept(cut.recompute), [whole, wholeMixture] = kept("none")
  const ends = [stage === 0, stage === cut.pp - 1]
  const [numbers, output] = endsKept(cut.sequences, own, ...ends, cut.tp, cut.sequence, sizes.parameter)
  const one = (layers - routed) * dense + routed * mixture + numbers + output
  const again = Math.max(layers > routed ? whole - dense : 0, routed ? wholeMixture - mixture : 0)
  const underWay = oneFOneBInFlight(cut.pp, cut.microbatches, stage)
  found["activations"] = underWay * one + Math.max(0, again - output)
  return found
}

// minitrain.costs.layout.layer_products: operations of a layer's products in forward, on one rank
export function layerProducts(batch, shape, mixture, tensor, context) {
  const { all, expert } = layerParts(shape, mixture, tensor), tokens = floor((batch * shape.positions) / context)
  return 2 * tokens * (all[0] + shape.chosen * expert[0])
}

// minitrain.costs.layout.layer_core: those of its core, with nothing left out
export function layerCore(batch, shape, tensor, context) {
  const both = floor((4 * batch * shape.positions * shape.positions * (queryWidth(shape) + mixedWidth(shape))) / 2)
  return floor(floor(both / context) / tensor)
}

// minitrain.costs.fabric.Fabric.inside, ring, message, wait and leaving
export function inside(fabric, ranks, stride) {
  return ranks * stride <= fabric.per_node ? ranks : Math.max(1, floor(fabric.per_node / stride))
}

export function ring(fabric, machine, ranks, stride) {
  const near = fabric.reached * machine.link, here = inside(fabric, ranks, stride)
  return here === ranks ? near : Math.min(near, here * fabric.reached_out * machine.network)
}

export function message(fabric, machine, ranks, stride) {
  const near = inside(fabric, ranks, stride) === ranks
  return near ? fabric.reached * machine.link : fabric.reached_out * machine.network
}

export function wait(fabric, ranks, stride) {
  const nodes = Math.ceil(ranks / inside(fabric, ranks, stride))
  return (ranks - nodes) * fabric.hop + (nodes - 1) * fabric.hop_out
}

export function leaving(fabric, ranks, stride) {
  const near = inside(fabric, ranks, stride)
  return (ranks - (near < ranks ? near : 1)) / ranks
}

// minitrain.costs.fabric.pieces
export function pieces(parameters, ranks, layers) {
  return Math.min(layers + 1, Math.ceil(parameters / (1e6 * ranks)))
}

// minitrain.costs.time_bar.overlap: [hidden, exposed]
export function overlap(...sent) {
  const hidden = sum(sent.map(([seconds, computing]) => Math.min(seconds, computing)))
  return [hidden, sum(sent.map(([seconds]) => seconds)) - hidden]
}

// minitrain.costs.layout.seconds: of each stage [computed, busy, cores]
export function seconds(shape, cut, sizes, machine, reached) {
  const batch = cut.microbatches * cut.sequences, speed = reached.products * machine.flops
  const tokens = batch * floor(shape.positions / cut.cp), core = layerCore(batch, shape, cut.tp, cut.cp)
  // A fused kernel leaves out the half that is masked, and computes scores again: 5 products in backward for 2.
  const fused = reached.core !== null
  const forward = fused ? core / 2 / (reached.core * machine.flops) : core / speed
  const backward = (fused ? 2.5 : 2) * forward
  // Outside attention and MLP, tensor-parallel ranks hold activations whole, unless those are cut, too.
  const sharers = cut.sequence ? cut.tp : (2 * cut.tp) / (1 + cut.tp)
  const moved = (reached.moved * tokens * shape.hidden * sizes.parameter) / 2 / sharers / machine.memory
  const [dense, mixture] = [false, true].map(kind => layerProducts(batch, shape, kind, cut.tp, cut.cp) / speed)
  const logits = tokens * rows(shape.vocabulary, cut.tp)
  const head = (6 * logits * shape.hidden) / speed + (reached.moved > 0 ? (LOSS * logits) / machine.memory : 0)
  const found = { computed: [], busy: [], cores: [] }
  layerCounts(shape.layers, cut.pp).forEach((layers, stage) => {
    const routed = mixtures(shape, cut.pp, stage)
    const products = (layers - routed) * dense + (routed ? routed * mixture : 0)
    const again = { none: 0, selective: layers * forward, full: products + layers * (forward + moved / 3) }
    const computed = 3 * products + layers * (forward + backward + moved) + (stage === cut.pp - 1 ? head : 0)
    found.computed.push(computed)
    found.busy.push(computed + again[cut.recompute])
    found.cores.push(layers * (forward + backward + (cut.recompute === "none" ? 0 : forward)))
  })
  return found
}

// minitrain.costs.layout.bar
export function bar(shape, cut, sizes, machine, fabric, reached) {
  const m = cut.microbatches, item = sizes.parameter
  const { computed, busy, cores } = seconds(shape, cut, sizes, machine, reached)
  const busiest = busy.indexOf(Math.max(...busy)), again = busy[busiest] - computed[busiest]
  let compute = computed[busiest]
  const idle = (sum(busy) - busy[busiest]) / m
  const forward = compute / 3, backward = (2 / 3) * compute + again

  const layers = layerCounts(shape.layers, cut.pp)[busiest], forwards = cut.recompute === "full" ? 2 : 1
  const tokens = m * cut.sequences * floor(shape.positions / cut.cp), wide = tokens * shape.hidden * item
  const sharers = cut.dp * cut.cp, [shared, own] = parameters(shape, cut, busiest)
  const replicas = Math.max(1, floor(cut.dp / cut.ep))
  const bytes = (shared * (sharers - 1)) / sharers + (own * (replicas - 1)) / replicas
  const line = bytes / ring(fabric, machine, sharers, cut.tp)
  const parts = cut.zero >= 2 ? layers + 1 : pieces(shared + own, sharers, layers)
  const around = parts * wait(fabric, sharers, cut.tp)
  const gather = line * item + around, scatter = line * sizes.gradient + around
  let data = [[m * gather, forward], [m * (gather + scatter), backward]]
  if (cut.zero < 3) {
    const sent = [2, 1, m][cut.zero] * scatter
    data = [[sent, backward / (cut.zero === 2 ? 1 : m)], [cut.zero ? gather : 0, forward / m]]
  }
  const sums = layers * (2 * forwards + 2) // all-reduces of a micro-batch, each of two rings
  const tensor = (sums * wide * 2 * (cut.tp - 1)) / cut.tp / ring(fabric, machine, cut.tp, 1)
  const times = cut.recompute === "none" ? 2 : 3
  const keys = layers * (cut.cp - 1) * 2 * tokens * kvOwn(shape, cut.tp) * (times * item + Math.max(4, item))
  const keyRing = [keys / message(fabric, machine, cut.cp, cut.tp), cores[busiest]]
  const near = [cut.ep, cut.tp * cut.cp]
  const routes = mixtures(shape, cut.pp, busiest) * (2 * forwards + 2) * wide * shape.chosen * leaving(fabric, ...near)
  const waited = tensor + 2 * sums * m * wait(fabric, cut.tp, 1) + routes / message(fabric, machine, ...near)
  const last = cut.pp - 1
  let boundary = (((busiest < last ? 1 : 0) + (busiest > 0 ? 1 : 0)) * wide) / (cut.sequence ? cut.tp : 1)
  if (shape.tied && last > 0 && (busiest === 0 || busiest === last)) {
    boundary += rows(shape.vocabulary, cut.tp) * shape.hidden * sizes.gradient
  }
  const crossing = [boundary / message(fabric, machine, cut.pp, cut.tp * sharers), m > 1 ? compute + again : 0]
  const [hidden, exposed] = overlap(...data, crossing, keyRing, [waited, 0])
  // The optimizer moves its states, and what hides slows down what hides it.
  const stepped = cut.zero ? shared / sharers + own / replicas : shared + own
  if (reached.moved > 0) compute += (ADAM * stepped) / machine.memory
  return { compute, hidden, exposed: exposed + reached.contended * hidden, again, idle }
}

// minitrain.costs.composition_work.step_flops
export function stepFlops(batch, shape) {
  const routed = mixtures(shape, 1, 0), core = shape.layers * layerCore(batch, shape, 1, 1)
  const products = (shape.layers - routed) * layerProducts(batch, shape, false, 1, 1)
  const ofExperts = routed ? routed * layerProducts(batch, shape, true, 1, 1) : 0
  return 3 * (products + ofExperts + core + 2 * batch * shape.positions * shape.hidden * shape.vocabulary)
}

// minitrain.costs.roofline.utilization
export function utilization(flops, seconds, devices, peak) {
  return flops / (seconds * devices * peak)
}
