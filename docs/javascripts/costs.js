// The formulas of the calculator: those of minitrain.costs.layout and of what it calls, under the same names.
// tests/site/test_calculator.py compares both on a thousand random inputs.

const sum = numbers => numbers.reduce((total, number) => total + number, 0)
const floor = Math.floor

// minitrain.costs.composition.layer_counts
export function layerCounts(layers, stages) {
  return Array.from({ length: stages }, (_, stage) => floor(layers / stages) + (stage < layers % stages ? 1 : 0))
}

// minitrain.costs.layout.mixtures: the second, fourth, … layer has experts
export function mixtures(shape, pp, stage) {
  const counts = layerCounts(shape.layers, pp), before = sum(counts.slice(0, stage))
  return shape.experts ? floor((before + counts[stage]) / 2) - floor(before / 2) : 0
}

// minitrain.costs.mixture_of_experts.expert_parameters
export function expertParameters(hidden, inner) {
  return 2 * hidden * inner + inner + hidden
}

// minitrain.costs.layout.parameters: [shared, of experts]
export function parameters(shape, cut, stage) {
  const h = shape.hidden, t = cut.tp, last = stage === cut.pp - 1
  const layers = layerCounts(shape.layers, cut.pp)[stage], routed = mixtures(shape, cut.pp, stage)
  const table = Math.ceil(shape.vocabulary / t) * h
  let shared = layers * (floor((12 * h * h + 7 * h) / t) + 6 * h)
  if (stage === 0) shared += table + (shape.learned ? shape.positions * h : 0)
  if (last) shared += 2 * h + (stage > 0 || !shape.tied ? table : 0)
  if (!routed) return [shared, 0]
  const mlp = floor((8 * h * h + 4 * h) / t) + h, own = Math.ceil(shape.experts / cut.ep)
  shared += routed * (shape.gates * h * shape.experts - mlp)
  return [shared, routed * own * (floor((expertParameters(h, 4 * h) - h) / t) + h)]
}

// minitrain.costs.zero.state_bytes
export function stateBytes(stage, count, ranks, parameter, gradient, optimizer) {
  const part = (size, first) => (size * count) / (stage >= first ? ranks : 1)
  return { "parameters": part(parameter, 3), "gradients": part(gradient, 2), "optimizer states": part(optimizer, 1) }
}

// minitrain.costs.composition_kept.layer_kept, with fused attention and without dropout
export function layerKept(batch, shape, tensor, sequence, recompute, item, ring) {
  const seq = shape.positions, outside = sequence ? tensor : 1
  const wide = batch * seq * shape.hidden * item, rows = batch * seq * item
  if (recompute === "full") return floor(wide / outside)
  const whole = [wide, 2 * rows, wide, wide, 2 * rows, wide] // two norms and the inputs of attention and MLP
  const divided = [3 * wide, wide, 4 * wide, 4 * wide] // queries, keys, values; output; before and after GELU
  if (recompute !== "selective") divided.push(Math.max(4, item) * batch * shape.heads * seq) // sums of the softmax
  let kept = sum(whole.map(size => floor(size / outside))) + sum(divided.map(size => floor(size / tensor)))
  if (!shape.learned) kept += Math.max(4, item) * seq * 3 * floor(shape.hidden / shape.heads / 2)
  return kept
}

// minitrain.costs.composition_kept.mixture_kept
export function mixtureKept(batch, shape, routes, tensor, sequence, recompute, item) {
  const dense = layerKept(batch, shape, tensor, sequence, recompute, item)
  if (recompute === "full") return dense
  const wide = batch * shape.positions * shape.hidden * item, mlp = floor((8 * wide) / tensor)
  const gathered = sequence ? wide - floor(wide / tensor) : 0
  return dense - mlp + gathered + (2 * shape.hidden + floor((8 * shape.hidden) / tensor)) * routes * item
}

// minitrain.costs.composition_kept.ends_kept: [embedding, output], without dropout
export function endsKept(batch, shape, first, last, tensor, sequence, item) {
  const tokens = batch * shape.positions, outside = sequence ? tensor : 1
  const positions = shape.learned ? floor((8 * shape.positions) / outside) : 0
  const numbers = first ? (8 + (tensor > 1 ? 1 : 0)) * tokens + positions : 0
  if (!last) return [numbers, 0]
  const wide = floor(((2 * shape.hidden + 2) * tokens * item) / outside)
  const logits = Math.ceil(shape.vocabulary / tensor) * tokens
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
    const mixture = routed ? mixtureKept(cut.sequences, own, cut.sequences * own.positions, ...how) : 0
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

// minitrain.costs.recomputation.core_flops and layer_flops
export function coreFlops(batch, seq, hidden) {
  return 4 * batch * seq * seq * hidden
}

export function layerFlops(batch, seq, hidden) {
  return 24 * batch * seq * hidden * hidden + coreFlops(batch, seq, hidden)
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

// minitrain.costs.layout.bar
export function bar(shape, cut, sizes, machine, fabric, reached) {
  const [m, b, s, h, item] = [cut.microbatches, cut.sequences, shape.positions, shape.hidden, sizes.parameter]
  const speed = cut.cp * cut.tp * reached * machine.flops
  const core = coreFlops(b * m, s, h), layer = layerFlops(b * m, s, h)
  const repeated = { none: 0, selective: core, full: layer }[cut.recompute]
  const counts = layerCounts(shape.layers, cut.pp)
  const computed = counts.map(count => (3 * count * layer) / speed)
  computed[cut.pp - 1] += (6 * b * m * s * h * shape.vocabulary) / speed // the head
  const busy = computed.map((seconds, stage) => seconds + (counts[stage] * repeated) / speed)
  const busiest = busy.indexOf(Math.max(...busy))
  const compute = computed[busiest], again = busy[busiest] - compute
  const idle = (sum(busy) - busy[busiest]) / m
  const forward = compute / 3, backward = (2 / 3) * compute + again

  const layers = counts[busiest], forwards = cut.recompute === "full" ? 2 : 1
  const wide = m * b * floor(s / cut.cp) * h * item
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
  const keys = layers * (cut.cp - 1) * 2 * (wide / item / cut.tp) * (times * item + Math.max(4, item))
  const keyRing = [keys / message(fabric, machine, cut.cp, cut.tp), (layers * core * (times + 1)) / speed]
  const near = [cut.ep, cut.tp * cut.cp]
  const experts = mixtures(shape, cut.pp, busiest) * (2 * forwards + 2) * wide * leaving(fabric, ...near)
  const waited = tensor + 2 * sums * m * wait(fabric, cut.tp, 1) + experts / message(fabric, machine, ...near)
  const last = cut.pp - 1
  let boundary = (((busiest < last ? 1 : 0) + (busiest > 0 ? 1 : 0)) * wide) / (cut.sequence ? cut.tp : 1)
  if (shape.tied && last > 0 && (busiest === 0 || busiest === last)) {
    boundary += Math.ceil(shape.vocabulary / cut.tp) * h * sizes.gradient
  }
  const crossing = [boundary / message(fabric, machine, cut.pp, cut.tp * sharers), m > 1 ? compute + again : 0]
  const [hidden, exposed] = overlap(...data, crossing, keyRing, [waited, 0])
  return { compute, hidden, exposed, again, idle }
}

// minitrain.costs.recomputation.step_flops
export function stepFlops(batch, seq, hidden, layers, vocabulary) {
  return 3 * (layers * layerFlops(batch, seq, hidden) + 2 * batch * seq * hidden * vocabulary)
}

// minitrain.costs.roofline.utilization
export function utilization(flops, seconds, devices, peak) {
  return flops / (seconds * devices * peak)
}
