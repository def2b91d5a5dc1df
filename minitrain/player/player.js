"use strict";
// The player: a recording of a small form on real ranks, step by step. Everything on the screen at a tick is drawn from
// the state of each rank at that tick; nothing is kept between two of them but the tick.
//
//   play(element, recording)      what `minitrain.player.page.recording` makes
//
// `unfold` makes the states, `Messages` says who waits for whom, and the rest draws: source, ranks, arrows, strip.

function play(root, recording) {
  const ranks = recording.ranks.map(unfold);
  const count = ranks.length;
  const end = Math.max(1, ...ranks.map((states) => states.at(-1).tick));
  const messages = gatherMessages(ranks);
  const hidden = new Set(recording.hide);
  let tick = 0, timer = null;

  // ---- the state of each rank at a tick ----

  function unfold(events) {
    const states = [];
    let before = { stack: [], names: {}, shown: {}, memory: {}, held: 0, sent: 0, peak: 0 };
    for (const event of events) {
      const now = { ...before, ...event };
      for (const key of ["of", "verb", "peer", "key", "members", "into", "brings", "rows", "got", "error"])
        if (!(key in event)) delete now[key];
      for (const part of ["names", "shown"]) now[part] = merged(before[part], event[part]);
      now.memory = changedMemory(before.memory, event);
      now.peak = Math.max(before.peak, now.held);
      states.push(now);
      before = now;
    }
    return states;
  }

  function merged(before, changes) {
    if (!changes) return before;
    const now = { ...before, ...changes };
    for (const name in changes) if (changes[name] === null) delete now[name];
    return now;
  }

  // Of each storage: its cells, the tick at which each has last changed, and the rank from which its value came.
  function changedMemory(before, event) {
    const now = { ...before };
    for (const [number, cells] of Object.entries(event.memory || {})) {
      if (cells === null) { delete now[number]; continue; }
      if (cells === "many") { now[number] = { cells, since: [], from: [] }; continue; }
      const old = before[number] && before[number].cells.length === cells.length ? before[number] : null;
      const same = (i) => old && old.cells[i] === cells[i];
      now[number] = {
        cells,
        since: cells.map((_, i) => (same(i) ? old.since[i] : event.tick)),
        from: cells.map((_, i) => (same(i) ? old.from[i] : undefined)),
      };
    }
    if (event.kind === "arrives") {
      const part = now[event.into.storage], size = product(event.into.shape), start = event.into.start || 0;
      if (part && part.cells !== "many") {
        const from = [...part.from], since = [...part.since];
        for (let i = 0; i < size; i++) { from[start + i] = sender(event, i, size); since[start + i] = event.tick; }
        now[event.into.storage] = { cells: part.cells, since, from };
      }
    }
    return now;
  }

  // Whose value the i-th of `size` elements is that have arrived; undefined for a sum.
  function sender(event, i, size) {
    if (event.peer !== undefined) return event.peer;
    if (event.verb === "all_gather") return event.members[Math.floor((i * event.members.length) / size)];
    return undefined;
  }

  function at(rank, time) { // the last state up to a tick; null before the first
    const states = ranks[rank];
    let low = 0, high = states.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (states[middle].tick <= time) low = middle + 1; else high = middle;
    }
    return low ? states[low - 1] : null;
  }

  const during = (rank, time) => ranks[rank].filter((state) => state.tick === time);

  // ---- messages ----

  function gatherMessages(all) {
    const found = new Map();
    all.forEach((states, rank) => states.forEach((state) => {
      if (!state.key) return;
      const message = found.get(state.key) || { verb: state.verb, members: state.members, starts: {}, arrivals: {} };
      found.set(state.key, message);
      message.collective = state.peer === undefined;
      if (!message.collective) message.ends = state.verb === "send" ? [rank, state.peer] : [state.peer, rank];
      if (state.kind === "starts" && state.verb !== "receive") message.starts[rank] = state;
      if (state.kind === "arrives") message.arrivals[rank] = state;
    }));
    for (const message of found.values()) {
      const left = Object.values(message.starts).map((state) => state.tick);
      const came = Object.values(message.arrivals).map((state) => state.tick);
      message.first = Math.min(...left);
      message.complete = Math.max(...left);
      message.last = came.length ? Math.max(...came) : end + 1; // it never arrives
    }
    return found;
  }

  // What a rank waits for at a tick; null if it does not wait. One that was stopped waits for what it started last, if that
  // has not arrived.
  function pending(rank, time) {
    const state = at(rank, time);
    if (!state || (state.kind !== "waits" && !state.error)) return null;
    if (state.kind === "waits") return state;
    const start = ranks[rank].findLast((each) => each.kind === "starts" && each.verb !== "send");
    return start && !ranks[rank].some((each) => each.kind === "arrives" && each.key === start.key) ? start : null;
  }

  // The ranks for which a rank waits at a tick; empty if it does not wait.
  function missing(rank, time) {
    const start = pending(rank, time);
    if (!start) return [];
    const message = messages.get(start.key), needed = message.collective ? message.members : [start.peer];
    return needed.filter((each) => each !== rank && !(message.starts[each] && message.starts[each].tick <= time));
  }

  // ---- small helpers ----

  function product(sizes) { return sizes.reduce((a, b) => a * b, 1); }
  const color = (rank) => `var(--rank${rank % 4})`;
  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const bytes = (value) => (value >= 10000 ? `${Math.round(value / 100) / 10} kB` : `${Math.round(value)} B`);
  const isTensor = (value) => value !== null && typeof value === "object" && "storage" in value;
  const written = (value) => (value === null || value === undefined ? "·" : String(value).replace("-", "−"));
  const some = (values) => (!values ? "" : values.length > 6 ? `${values.length} numbers` : values.map(written).join(" "));
  const who = (rank) => `<b style="color:${color(rank)}">rank ${rank}</b>`;
  const listed = (items) => (items.length < 2 ? items.join("") : `${items.slice(0, -1).join(", ")} and ${items.at(-1)}`);
  const readable = (verb) => verb.replaceAll("_", "-");

  function element(tag, name, html = "") {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.innerHTML = html;
    return made;
  }

  // ---- what a tick says in a sentence; also the list of all steps ----

  function sentence(time) {
    const parts = [], errors = new Map();
    for (let rank = 0; rank < count; rank++) {
      const waits = missing(rank, time);
      if (waits.length) parts.push(`${who(rank)} waits for ${listed(waits.map((each) => `rank ${each}`))}`);
      for (const state of during(rank, time)) {
        const other = state.peer === undefined ? readable(state.verb || "") : `rank ${state.peer}`;
        if (state.kind === "starts" && state.verb !== "receive") {
          const what = state.brings && state.brings.length ? some(state.brings) : "";
          parts.push(state.peer === undefined ? `${who(rank)} begins ${other} with ${what || "its part"}` : `${who(rank)} sends ${what} to ${other}`);
        }
        if (state.kind === "arrives") parts.push(`${who(rank)} gets ${some(state.got) || "its part"} from ${other}`);
        if (state.kind === "end" && !state.error) parts.push(`${who(rank)} is done`);
        if (state.error) errors.set(state.error, [...(errors.get(state.error) || []), who(rank)]);
      }
    }
    const stuck = time === end && ranks.every((_, rank) => at(rank, time).error || at(rank, time).kind === "waits");
    for (const [error, stopped] of errors) parts.push(`${listed(stopped)}: ${escape(error)}`);
    return (stuck ? ['<b class="bad">nobody goes on</b>', ...parts] : parts).join(" · ");
  }

  // What explains the line at which most happens: the comment above it, or what its function says of itself.
  function explanation(time) {
    const votes = new Map();
    for (let rank = 0; rank < count; rank++) {
      const state = at(rank, time), top = state && state.stack.at(-1);
      if (!top || (state.kind === "end" && !state.error)) continue;
      const text = texts.get(`${top[0]}:${top[1]}`);
      if (!text) continue;
      const vote = votes.get(text) || { text, ranks: [], weight: 0 };
      votes.set(text, vote);
      vote.ranks.push(rank);
      vote.weight += during(rank, time).some((each) => each.kind === "starts" || each.kind === "arrives") ? 3 : 1;
    }
    return [...votes.values()].sort((a, b) => b.weight - a.weight)[0];
  }

  // ---- the page ----

  const small = /small/.test(location.search); // on the landing page: no source, and it plays by itself
  root.classList.add("player");
  root.classList.toggle("small", small);
  root.innerHTML = "";
  const head = element("header", "", `<h1>${escape(recording.title)}</h1><span class="file">${escape(recording.sources[0].name)} · `
    + `${count} ranks, recorded line by line</span>`);
  const scheme = button("◐", "Light or dark", () => paint(!root.classList.contains("dark")), "scheme");
  head.append(scheme);
  const formula = recording.formulas[0];
  root.append(head, element("p", "look", escape(recording.look)
    + (formula ? ` A rank sends <b>${escape(formula[0])}</b>${recording.formulas.every((each) => each[1] === formula[1]) ? ` = ${bytes(formula[1])}` : ""}.` : "")));

  const bar = element("div", "bar");
  bar.setAttribute("role", "toolbar");
  bar.setAttribute("aria-label", "Steps");
  const start = button("▶ play", "Play or pause (space)", () => toggle(), "go");
  const clock = element("span", "clock");
  const speed = element("select", "wide");
  speed.setAttribute("aria-label", "Speed");
  for (const [name, pause] of [["slow", 1400], ["normal", 700], ["fast", 280], ["very fast", 90]]) {
    const option = element("option", "", name);
    option.value = pause;
    option.selected = name === "normal";
    speed.append(option);
  }
  const until = element("span", "until", "<span>until it waits:</span>");
  for (let rank = 0; rank < count; rank++) {
    const each = button(rank, `Go on until rank ${rank} waits (key ${rank})`, () => untilWaits(rank));
    each.style.setProperty("--color", color(rank));
    until.append(each);
  }
  bar.append(
    button("|‹", "To the start (Home)", () => go(0), "wide"), button("‹", "Back (←)", () => go(next(-1))), start,
    button("›", "Step (→)", () => go(next(1))), clock,
    button("‹ message", "The message before (shift ←)", () => go(next(-1, true)), "wide"),
    button("message ›", "The next message (shift →)", () => go(next(1, true))), until, speed);
  root.append(bar);

  const told = element("div", "told", '<div class="explains"></div><div class="happens"></div>');
  told.setAttribute("aria-live", "polite");
  const body = element("div", "body"), code = element("div", "code"), stage = element("div", "stage");
  code.tabIndex = 0;
  code.setAttribute("aria-label", "Source");
  root.append(told, body);
  body.append(code, stage);

  const texts = new Map(), lines = new Map();
  recording.sources.forEach((source, file) => {
    if (!source.lines.length) return;
    code.append(element("h2", "", escape(source.name)));
    let last = null;
    for (const [number, text, explains] of source.lines) {
      if (last !== null && number > last + 1) code.append(element("div", "gap", "…"));
      const line = element("div", "line", `<span class="marks"></span><span class="number">${number}</span><code>${highlighted(text)}</code>`);
      line.style.setProperty("--indent", text.length - text.trimStart().length);
      code.append(line);
      lines.set(`${file}:${number}`, line);
      texts.set(`${file}:${number}`, explains);
      last = number;
    }
  });

  const panels = ranks.map((_, rank) => {
    const panel = element("section", "rank");
    panel.style.setProperty("--color", color(rank));
    panel.setAttribute("aria-label", `rank ${rank}`);
    stage.append(panel);
    return panel;
  });
  const arrows = svg("svg", { class: "arrows", "aria-hidden": "true" });
  stage.append(arrows);

  const strip = element("div", "strip"), chart = svg("svg", { "aria-hidden": "true" });
  const slider = element("input");
  Object.assign(slider, { type: "range", min: 0, max: end, value: 0 });
  slider.setAttribute("aria-label", "Tick");
  strip.append(chart, slider);
  root.append(strip, element("p", "key", '<span><b class="cell new">7</b> changed now</span><span><b class="cell arriving"></b> may be arriving</span>'
    + '<span><b class="cell unwritten">·</b> never written</span><span><b class="cell freed"></b> freed</span>'
    + `<span><b class="cell leaving" style="--color:${color(0)}">7</b> being sent</span>`
    + (recording.digits ? `<span><b class="cell">7<s><i style="background:${color(0)}"></i><i style="background:${color(1)}"></i></s></b> whose values are in it</span>`
      : `<span><b class="cell from" style="--from:${color(0)}">7</b> came from the rank of this color</span>`)
    + "<span>┄▷ waits for</span>"
    + "<span>a mark shows the line that runs next; one line is one tick</span>"));
  const story = element("details", "story", "<summary>All steps in words</summary><ol></ol>");
  const moments = element("div", "moments");
  root.append(story, moments);

  function button(label, name, action, style) {
    const made = element("button", style, String(label));
    made.type = "button";
    made.title = name;
    made.setAttribute("aria-label", name);
    made.onclick = action;
    return made;
  }

  function svg(tag, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function highlighted(text) { // comments, strings, keywords and numbers: enough for sixty lines of Python
    const token = /(#.*$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(and|as|assert|class|def|elif|else|for|from|if|import|in|is|lambda|not|or|return|while|with|yield|None|True|False)\b|\b(\d[\d.e]*)\b/g;
    const names = ["comment", "string", "keyword", "number"];
    let result = "", last = 0;
    for (const match of text.matchAll(token)) {
      const kind = names[[1, 2, 3, 4].findIndex((group) => match[group] !== undefined)];
      result += escape(text.slice(last, match.index)) + `<span class="${kind}">${escape(match[0])}</span>`;
      last = match.index + match[0].length;
    }
    return result + escape(text.slice(last)) || "&nbsp;";
  }

  // ---- a rank: its tensors as cells, one tile for each storage ----

  const widths = new Map(); // of all numbers that a name ever stands for, on any rank, so that cells stay where they are
  const stem = (name) => name.replace("self.", "").split("[")[0];
  ranks.forEach((states) => {
    const longest = {};
    for (const state of states)
      for (const [number, part] of Object.entries(state.memory))
        if (part.cells !== "many") for (const cell of part.cells) longest[number] = Math.max(longest[number] || 1, written(cell).length);
    const visit = (name, value) => {
      if (isTensor(value)) widths.set(stem(name), Math.max(widths.get(stem(name)) || 1, longest[value.storage] || 1));
      else if (Array.isArray(value)) value.forEach((each) => visit(name, each));
    };
    for (const state of states) for (const part of [state.names, state.shown]) for (const name in part) visit(name, part[name]);
  });
  const cellWidth = (name) => Math.max(24, 7 * (widths.get(stem(name)) || 1) + 9);

  function positions(tensor) {
    let found = [tensor.start || 0];
    tensor.shape.forEach((size, dim) => {
      const stride = tensor.strides ? tensor.strides[dim] : product(tensor.shape.slice(dim + 1));
      found = found.flatMap((place) => Array.from({ length: size }, (_, i) => place + i * stride));
    });
    return found;
  }

  function cells(name, tensor, state, leaving) {
    const part = state.memory[tensor.storage], places = positions(tensor);
    if (!places.length) return '<i class="note">empty</i>';
    if (!part || part.cells === "many") return `<i class="note">[${tensor.shape.join(" × ")}]</i>`;
    const columns = tensor.shape.length > 1 ? tensor.shape.at(-1) : places.length;
    const drawn = places.map((place) => {
      if (tensor.freed || !part.cells.length) return '<b class="cell freed"></b>';
      const value = part.cells[place], kinds = ["cell"], from = part.from[place];
      if (value === "~") return '<b class="cell arriving"></b>';
      if (value === null) kinds.push("unwritten"); else if (part.since[place] === state.tick && state.tick) kinds.push("new");
      if (leaving.has(`${tensor.storage}:${place}`)) kinds.push("leaving");
      const tint = from === undefined || value === null || recording.digits ? "" : ` style="--from:${color(from)}"`;
      if (tint) kinds.push("from");
      return `<b class="${kinds.join(" ")}"${tint}>${escape(written(value))}${recording.digits ? digits(value) : ""}</b>`;
    });
    return `<div class="cells" style="grid-template-columns:repeat(${columns},${cellWidth(name)}px)">${drawn.join("")}</div>`;
  }

  function digits(value) { // whose values are in a sum: rank r began with 10ʳ
    if (!Number.isInteger(value)) return "";
    const each = [...String(Math.abs(value))].reverse();
    return `<s>${ranks.map((_, rank) => `<i style="background:${each[rank] > 0 ? color(rank) : "none"}"></i>`).join("")}</s>`;
  }

  function leavingFrom(rank, time) { // the cells that this rank is sending
    const found = new Set();
    for (const message of messages.values()) {
      const state = message.starts[rank];
      if (!message.collective && state && state.tick <= time && time < message.last)
        for (const place of positions(state.into)) found.add(`${state.into.storage}:${place}`);
    }
    return found;
  }

  // All names of tensors that a rank has at this moment, lists of them, and the rest as text.
  function inventory(state) {
    const tensors = [], lists = [], texts = [];
    const add = (name, value, pinned) => {
      if (isTensor(value)) tensors.push({ name, tensor: value, pinned });
      else if (Array.isArray(value)) value.forEach((each, number) => add(`${name}[${number}]`, each, pinned));
    };
    for (const name in state.shown) add(name, state.shown[name], true);
    const known = new Set(tensors.map((each) => each.tensor.storage));
    for (const name in state.names) if (isTensor(state.names[name])) known.add(state.names[name].storage);
    const inside = (value) => (isTensor(value) ? [value] : Array.isArray(value) ? value.flatMap(inside) : []);
    for (const [full, value] of Object.entries(state.names)) {
      const name = full.replace("self.", ""), held = inside(value);
      if (hidden.has(name)) continue;
      if (isTensor(value)) add(name, value, false);
      else if (!Array.isArray(value)) texts.push([name, value]);
      else if (held.length && held.every((each) => known.has(each.storage)) && !recording.keep.includes(name)) add(name, value, false);
      else if (held.length || recording.keep.includes(name)) lists.push([name, value]);
      else texts.push([name, `[${value.join(", ")}]`]);
    }
    return { tensors, lists, texts };
  }

  function contents(rank, time) {
    const state = at(rank, time);
    if (!state) return "";
    const { tensors, lists, texts: plain } = inventory(state), leaving = leavingFrom(rank, time);
    const groups = new Map();
    for (const each of tensors) groups.set(each.tensor.storage, [...(groups.get(each.tensor.storage) || []), each]);
    const tiles = [...groups.values()].flatMap((group) => storageTiles(group, state, leaving));
    const nested = (name, value) => (isTensor(value) ? cells(name, value, state, leaving)
      : Array.isArray(value) ? `<span class="box">${value.map((each) => nested(name, each)).join("")}</span>` : `<i class="note">${escape(value)}</i>`);
    for (const [name, value] of lists)
      tiles.push(tile(escape(name), `<div class="list">${value.map((each) => nested(name, each)).join("") || '<i class="note">empty</i>'}</div>`));
    const facts = plain.map(([name, value]) => `<span>${escape(name)} <b>${escape(value)}</b></span>`);
    return `<div class="tiles">${tiles.join("")}</div><div class="facts">${facts.join("") || "&nbsp;"}</div>`;
  }

  const tile = (name, inner, pinned) => `<div class="tile${pinned ? " pinned" : ""}"><div class="name">${name}</div>${inner}</div>`;

  // One storage: its widest name has the cells; a part of it is a brace below; another view has a tile of its own.
  function storageTiles(group, state, leaving) {
    const size = (each) => product(each.tensor.shape), first = (each) => each.tensor.start || 0;
    const base = group.find((each) => each.pinned) || group.reduce((a, b) => (size(b) > size(a) ? b : a));
    const flat = base.tensor.shape.length < 2 || size(base) === base.tensor.shape.at(-1), width = cellWidth(base.name) + 2;
    const same = [], lanes = [], others = [];
    for (const each of group) {
      if (each === base || !size(each)) continue;
      const within = first(each) >= first(base) && first(each) + size(each) <= first(base) + size(base);
      const plain = !each.tensor.strides && !base.tensor.strides && within;
      if (plain && size(each) === size(base)) { if (each.name !== base.name && !same.includes(each.name)) same.push(each.name); }
      else if (!plain || !flat) others.push(each);
      else {
        const from = first(each) - first(base), to = from + size(each);
        let lane = lanes.find((row) => row.every((other) => other.to <= from || other.from >= to));
        if (!lane) lanes.push((lane = []));
        lane.push({ from, to, name: each.name });
      }
    }
    const braces = lanes.map((row, number) => row.map(({ from, to, name }) => {
      const space = (to - from) * width - 2;
      const label = name.length * 6 + 4 > space && name.includes("[") ? name.slice(name.lastIndexOf("[")) : name;
      return `<div class="brace" title="${escape(name)}: a view" style="left:${from * width}px;width:${space}px;top:${number * 14}px">${escape(label)}</div>`;
    }).join("")).join("");
    const label = escape(base.name) + (same.length ? `<i title="the same memory"> = ${escape(same.slice(0, 2).join(" = "))}</i>` : "");
    const below = lanes.length ? `<div class="braces" style="height:${lanes.length * 14}px">${braces}</div>` : "";
    return [
      tile(label, cells(base.name, base.tensor, state, leaving) + below, base.pinned),
      ...others.map((each) => tile(`${escape(each.name)}<i> view of ${escape(base.name)}</i>`, cells(each.name, each.tensor, state, leaving), each.pinned)),
    ];
  }

  const most = Math.max(1, ...ranks.flatMap((states) => states.map((state) => state.held)));
  const total = ranks.map((states, rank) => (recording.formulas[rank] ? recording.formulas[rank][1] : states.at(-1).sent));

  function drawRank(rank, time) {
    const state = at(rank, time), panel = panels[rank], waits = missing(rank, time);
    const top = state && state.stack.at(-1);
    const status = !state ? "not yet" : waits.length ? `waits for rank ${waits.join(", ")}` : state.error ? "stopped"
      : state.kind === "end" ? "done" : top ? `line ${top[1]}` : "";
    panel.classList.toggle("waits", waits.length > 0 || !!(state && state.error));
    panel.classList.toggle("failed", !!(state && state.error));
    const news = during(rank, time).filter((each) => each.kind === "arrives" || (each.kind === "starts" && each.verb !== "receive"))
      .map((each) => `${each.kind === "arrives" ? "←" : "→"} ${each.peer === undefined ? readable(each.verb) : `rank ${each.peer}`} ${some(each.got || each.brings)}`);
    const calls = !state || state.kind === "end" ? "" : state.stack.map((frame) => frame[2].split(".").slice(-2).join(".")).slice(-2).join(" › ");
    const held = state ? state.held : 0, peak = state ? state.peak : 0;
    panel.innerHTML = `<h3><span class="badge">rank ${rank}</span><span class="calls">${escape(calls)}</span>`
      + `<span class="status">${status}</span>`
      + `<span class="meter" title="memory held: ${bytes(held)} now, ${bytes(peak)} at most so far"><span>holds</span>`
      + `<u><b style="width:${(100 * held) / most}%"></b><em style="left:${(100 * peak) / most}%"></em></u>${bytes(held)}</span>`
      + `<span class="meter" title="bytes sent so far, and in all"><span>sent</span>${Math.round(state ? state.sent : 0)} of ${bytes(total[rank])}</span></h3>`
      + `${contents(rank, time)}<div class="news">${escape(news.join("   ")) || "&nbsp;"}</div>`;
  }

  // ---- arrows: what travels at a tick, and who waits for whom ----

  function drawArrows(time) {
    const box = stage.getBoundingClientRect(), width = 142;
    const middle = panels.map((panel) => { const area = panel.getBoundingClientRect(); return area.top - box.top + Math.min(area.height / 2, 60); });
    arrows.replaceChildren();
    arrows.setAttribute("viewBox", `0 0 ${width} ${box.height}`);
    arrows.setAttribute("height", box.height);
    const label = (x, y, text, paint) => {
      if (!text) return;
      const wide = text.length * 6.5 + 10, place = Math.min(Math.max(x, wide / 2 + 2), width - wide / 2);
      arrows.append(svg("rect", { x: place - wide / 2, y: y - 9, width: wide, height: 18, rx: 5, style: `stroke:${paint}` }),
        svg("text", { x: place, y }, text));
    };
    const curve = (from, to, bulge, style) => arrows.append(svg("path", { d: `M7 ${from}C${bulge} ${from} ${bulge} ${to} 12 ${to}`, style }));
    const point = (y, style) => arrows.append(svg("path", { d: `M6 ${y}l8 -4.5v9z`, style }));
    let lane = 0;
    for (const message of messages.values()) {
      if (message.first > time || time > message.last) continue;
      if (message.collective) { drawCollective(message, time, middle, lane++, label); continue; }
      const [from, to] = message.ends, started = message.starts[from];
      if (!started) continue;
      const down = to > from, far = Math.abs(to - from), landed = message.arrivals[to] && message.arrivals[to].tick <= time;
      const y = middle[from] + (down ? 8 : -8), target = middle[to] + (down ? -8 : 8);
      const bulge = Math.min(128, 34 + 30 * far + (far > 1 ? 14 : 0)) - (down ? 0 : far > 1 ? 14 : 0);
      curve(y, target, bulge, `stroke:${color(from)}${landed ? "" : ";stroke-dasharray:5 4"}`);
      point(target, `fill:${color(from)};stroke:none`);
      const way = landed ? 0.8 : Math.max(0.3, Math.min(0.7, (time - started.tick + 0.5) / (message.last - started.tick + 0.5)));
      label(0.75 * bulge, y + (target - y) * (far > 1 ? 0.36 : way), some(started.brings), color(from));
    }
    for (let rank = 0; rank < count; rank++) {
      const start = pending(rank, time);
      if (!start || start.peer === undefined) continue;
      for (const other of missing(rank, time)) {
        const y = middle[other] + (other < rank ? 16 : -16), target = middle[rank] + (other < rank ? -16 : 16);
        curve(y, target, 30 + 26 * Math.abs(other - rank), `stroke:${color(rank)};stroke-width:1.4;stroke-dasharray:1.5 4.5`);
        point(target, `stroke:${color(rank)};stroke-width:1.3;fill:var(--page)`);
      }
    }
  }

  function drawCollective(message, time, middle, lane, label) {
    const x = 26 + 9 * lane, ys = message.members.map((rank) => middle[rank] + 24 * lane);
    const here = message.members.filter((rank) => message.starts[rank] && message.starts[rank].tick <= time);
    const done = Object.values(message.arrivals).some((state) => state.tick <= time);
    const line = here.length < message.members.length ? ";stroke-dasharray:4 4" : "";
    arrows.append(svg("path", { d: `M${x} ${Math.min(...ys)}V${Math.max(...ys)}`, style: `stroke:var(--dim)${line}` }));
    message.members.forEach((rank, number) => {
      const y = ys[number], paint = here.includes(rank) ? color(rank) : "var(--edge)";
      arrows.append(svg("path", { d: `M4 ${y}H${x - 5}`, style: `stroke:${paint}` }),
        svg("circle", { cx: x, cy: y, r: 5, style: `stroke:${paint};fill:${here.includes(rank) ? paint : "var(--page)"}` }));
      if (done && here.includes(rank)) arrows.append(svg("path", { d: `M3 ${y}l8 -4.5v9z`, style: `fill:${paint};stroke:none` }));
      const state = message.starts[rank];
      if (!here.includes(rank)) return;
      if (state.rows) state.rows[0].forEach((rows, to) => {
        if (rows) label(x + 62, y + (to - (message.members.length - 1) / 2) * 20, `${rows} → ${message.members[to]}`, color(message.members[to]));
      });
      else label(x + 20 + some(state.brings).length * 3.4, y, some(state.brings), paint);
    });
    const between = ys.length > 1 ? (ys[0] + ys[1]) / 2 : ys[0];
    arrows.append(svg("text", { x: x + 50, y: between - 6, class: "verb" }, readable(message.verb)),
      svg("text", { x: x + 50, y: between + 9, class: "here" }, `${here.length} of ${message.members.length} here`));
  }

  // ---- the strip: ranks and time; it is the slider, too ----

  const ROW = count > 3 ? 17 : 21, TOP = 16, LEFT = 26;
  const hatch = `stuck${document.querySelectorAll(".player").length}`;
  let toX = () => 0;

  function drawStrip() {
    const width = strip.clientWidth || 600, y = (rank) => TOP + rank * ROW;
    toX = (time) => LEFT + ((width - LEFT) * time) / end;
    strip.style.height = `${TOP + count * ROW + 4}px`;
    chart.replaceChildren();
    chart.setAttribute("viewBox", `0 0 ${width} ${TOP + count * ROW + 4}`);
    const pattern = svg("pattern", { id: hatch, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    pattern.append(svg("path", { d: "M0 0V5", class: "stuck" }));
    chart.append(pattern);
    drawPhases();
    ranks.forEach((states, rank) => {
      chart.append(svg("text", { x: 2, y: y(rank) + ROW / 2 + 4, class: "row", style: `fill:${color(rank)}` }, rank));
      states.forEach((state, number) => {
        const following = states[number + 1];
        if (!following || following.tick === state.tick) return;
        const x = toX(state.tick), wide = toX(following.tick) - x, letter = markOf(state);
        const waits = state.kind === "waits" && following.tick > state.tick + 1;
        if (following.error) { // from here on it does not go on
          chart.append(svg("rect", { x, y: y(rank) + 3, width: toX(end) - x, height: ROW - 6, class: "stuck", fill: `url(#${hatch})` }));
          return;
        }
        const style = waits ? `fill:none;stroke:${color(rank)};stroke-dasharray:2 2.5`
          : `fill:${color(rank)};opacity:${letter ? (letter === "B" ? 0.95 : 0.6) : Object.keys(recording.work).length ? 0.2 : 0.42}`;
        chart.append(svg("rect", { x: x + (waits ? 0.5 : 0), y: y(rank) + 3, width: Math.max(0.5, wide - (waits ? 1 : letter ? 0.6 : -0.3)), height: ROW - 6, style }));
        if (letter && wide > 16) chart.append(svg("text", { x: x + wide / 2, y: y(rank) + ROW / 2 + 4, class: "mark" }, letter));
      });
    });
    for (const message of messages.values()) {
      if (message.collective) {
        const x = toX(message.complete), rows = message.members.map((rank) => y(rank) + ROW / 2);
        chart.append(svg("path", { d: `M${x} ${Math.min(...rows)}V${Math.max(...rows)}`, class: "together" }));
        for (const [rank, state] of Object.entries(message.starts)) chart.append(svg("circle", { cx: toX(state.tick), cy: y(+rank) + ROW / 2, r: 2.6, class: "together" }));
      } else {
        const [from, to] = message.ends, left = message.starts[from], came = message.arrivals[to];
        if (left && came) chart.append(svg("path", { d: `M${toX(left.tick)} ${y(from) + ROW / 2}L${toX(came.tick)} ${y(to) + ROW / 2}`, style: `stroke:${color(from)}` }));
      }
    }
    chart.append(svg("rect", { class: "head", width: 3, height: TOP + count * ROW + 2, rx: 1.5 }));
  }

  function lineOf(state) {
    const top = state.stack.at(-1), line = top && lines.get(`${top[0]}:${top[1]}`);
    return line ? line.lastChild.textContent : "";
  }

  function markOf(state) {
    if (state.kind !== "line") return "";
    const text = lineOf(state), work = Object.entries(recording.work).find(([part]) => text.includes(part));
    return work ? work[1][1] : "";
  }

  // What a rank is at: [tick, name] of each phase that it begins.
  const phases = ranks.map((states) => {
    const found = [];
    for (const state of states) {
      const top = state.stack.at(-1);
      if (!top) continue;
      const text = state.kind === "line" ? lineOf(state) : "";
      const phase = Object.entries(recording.phases).find(([part]) => part === top[2] || (part.includes(" ") && text.includes(part)));
      if (phase && (!found.length || found.at(-1)[1] !== phase[1])) found.push([state.tick, phase[1]]);
    }
    return found;
  });
  const phaseAt = (rank, time) => phases[rank].findLast(([begun]) => begun <= time);

  function drawPhases() { // above the rows: what rank 0 is at
    for (const [begun, name] of phases[0]) chart.append(svg("text", { x: toX(begun) + 3, y: 11, class: "phase" }, name));
  }

  // ---- going through it ----

  const eventful = [...new Set(ranks.flatMap((states) => states.map((state) => state.tick)))].sort((a, b) => a - b);
  const withMessages = [...new Set(ranks.flatMap((states) => states.filter((state) => state.kind === "arrives" || (state.kind === "starts" && state.verb !== "receive")).map((state) => state.tick)))].sort((a, b) => a - b);

  function next(direction, message = false) {
    const ticks = message ? withMessages : eventful;
    const found = direction > 0 ? ticks.find((time) => time > tick) : ticks.findLast((time) => time < tick);
    return found === undefined ? (direction > 0 ? end : 0) : found;
  }

  function untilWaits(rank) {
    const found = eventful.find((time) => time > tick && missing(rank, time).length && !missing(rank, time - 1).length);
    go(found === undefined ? end : found);
    if (found === undefined) told.lastChild.innerHTML = `${who(rank)} does not wait any more`;
  }

  // tick -> what to predict there, where a line is reached for the first time; and when that line has run, what came of it
  const questions = new Map(), answers = new Map();
  for (const [part, [text, names]] of Object.entries(recording.ask)) {
    const reached = ranks.flatMap((states, rank) => states.filter((state) => state.kind === "line" && lineOf(state).includes(part))
      .map((state) => ({ time: state.tick, rank, text, names, depth: state.stack.length })));
    reached.sort((a, b) => a.time - b.time || a.rank - b.rank);
    if (!reached.length) continue;
    const first = reached[0];
    questions.set(first.time, first);
    const after = ranks[first.rank].find((state) => state.tick > first.time && state.kind === "line" && state.stack.length <= first.depth);
    if (after) answers.set(after.tick, { ...first, state: after });
  }

  function answer({ rank, names, state }) {
    const value = (name) => (name in state.shown ? state.shown[name] : state.names[name]);
    const there = names.map((name) => [name, value(name)]).filter(([, each]) => each !== undefined && !each.freed);
    const whose = (each) => ranks.map((_, from) => from).filter((from) => +[...String(state.memory[each.storage].cells[each.start || 0])].reverse()[from] > 0);
    if (recording.digits) return there.map(([name, each]) => `${name} of rank ${rank} has the values of ${listed(whose(each).map((from) => `rank ${from}`))}.`).join(" ");
    return `rank ${rank} has ${listed(there.map(([name, each]) => (Array.isArray(each) ? `${each.length} in ${name}` : name))) || "none"}.`;
  }

  function draw() {
    clock.textContent = `tick ${tick} of ${end}`;
    for (const line of lines.values()) if (line.dirty) { line.classList.remove("now"); line.firstChild.innerHTML = ""; line.dirty = false; }
    for (let rank = 0; rank < count; rank++) {
      const state = at(rank, tick);
      if (!state || (state.kind === "end" && !state.error)) continue;
      state.stack.forEach(([file, number], depth) => {
        const line = lines.get(`${file}:${number}`);
        if (!line) return;
        const innermost = depth === state.stack.length - 1;
        line.firstChild.innerHTML += `<i class="${innermost ? (missing(rank, tick).length ? "waiting" : "") : "caller"}" style="--color:${color(rank)}">${innermost ? rank : ""}</i>`;
        line.classList.toggle("now", innermost || line.classList.contains("now"));
        line.dirty = true;
      });
      drawRank(rank, tick);
    }
    for (let rank = 0; rank < count; rank++) if (!at(rank, tick) || at(rank, tick).kind === "end") drawRank(rank, tick);
    const best = explanation(tick), asks = small ? null : questions.get(tick), answered = small ? null : answers.get(tick);
    const marks = best ? best.ranks.map((rank) => `<span class="badge" style="--color:${color(rank)}">${rank}</span>`).join("") : "";
    const phase = best && phaseAt(best.ranks[0], tick);
    told.firstChild.innerHTML = asks ? `<b>Predict:</b> rank ${asks.rank}. ${marked(asks.text)}` : answered ? `<b>Answer:</b> ${escape(answer(answered))}`
      : best ? `${marks} ${phase ? `<i>${escape(phase[1])}</i> · ` : ""}${marked(best.text)}` : "&nbsp;";
    told.lastChild.innerHTML = sentence(tick) || "&nbsp;";
    drawArrows(tick);
    const headLine = chart.querySelector(".head");
    if (headLine) headLine.setAttribute("x", toX(tick) - 1.5);
    slider.value = tick;
    slider.setAttribute("aria-valuetext", `tick ${tick} of ${end}. ${told.textContent.trim()}`);
    follow();
  }

  const marked = (text) => escape(text).replace(/`([^`]*)`/g, "<code>$1</code>");

  function follow() { // keep the lines that run in view
    const tops = [...lines.values()].filter((line) => line.classList.contains("now")).map((line) => line.offsetTop);
    if (!tops.length || code.scrollHeight <= code.clientHeight + 4) return;
    const first = Math.min(...tops), last = Math.max(...tops) + 16, height = code.clientHeight;
    if (first < code.scrollTop + 20 || last > code.scrollTop + height - 20)
      code.scrollTop = Math.max(0, last - first < height - 60 ? (first + last - height) / 2 : first - 30);
  }

  function settle() { // panels as high as they ever get, so that nothing jumps
    const wide = root.clientWidth > 820;
    const probe = element("section", "rank");
    probe.style.cssText = `visibility:hidden;position:absolute;width:${panels[0].clientWidth}px`;
    stage.append(probe);
    ranks.forEach((_, rank) => {
      const seen = new Set();
      let high = 0;
      for (const time of eventful) {
        const inner = contents(rank, time), shape = inner.replace(/>[^<]*</g, "><");
        if (seen.has(shape)) continue;
        seen.add(shape);
        probe.innerHTML = `<h3><span class="badge">rank</span></h3>${inner}<div class="news">&nbsp;</div>`;
        high = Math.max(high, probe.offsetHeight);
      }
      panels[rank].style.minHeight = root.clientWidth > 560 ? `${high}px` : "";
    });
    probe.remove();
    code.style.maxHeight = wide ? `${Math.max(420, stage.offsetHeight - 9)}px` : "";
  }

  function go(time) {
    tick = Math.max(0, Math.min(end, Math.round(time)));
    draw();
    if (tick === end && !small) stop();
    try { if (root.dataset.address !== undefined) history.replaceState(null, "", `#${tick}`); } catch { /* within a notebook there is no address */ }
  }

  function stop() { clearInterval(timer); timer = null; start.innerHTML = "▶ play"; }

  function toggle() {
    if (timer) return stop();
    if (tick === end) go(0);
    start.innerHTML = "❚❚ pause";
    timer = setInterval(() => {
      go(small && tick === end ? 0 : next(1, small));
      if (questions.has(tick) && !small) stop();
    }, +speed.value);
  }

  function pressed(event) {
    const elsewhere = event.target !== document.body || document.querySelectorAll(".player").length > 1;
    if ((!root.contains(event.target) && elsewhere) || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return;
    const keys = {
      ArrowRight: () => go(next(1, event.shiftKey)), ArrowLeft: () => go(next(-1, event.shiftKey)),
      Home: () => go(0), End: () => go(end), " ": toggle,
    };
    const action = keys[event.key] || (/^\d$/.test(event.key) && +event.key < count ? () => untilWaits(+event.key) : null);
    if (!action) return;
    action();
    event.preventDefault();
  }

  function paint(dark) {
    root.classList.toggle("dark", dark);
    document.documentElement.style.background = dark ? "#141b24" : "#fff";
  }

  const around = surroundings();
  if (around) { // within the documentation, its scheme counts
    scheme.remove();
    const watch = () => paint(around.dataset.mdColorScheme === "slate");
    new MutationObserver(watch).observe(around, { attributes: true });
    watch();
  } else paint(matchMedia("(prefers-color-scheme: dark)").matches);

  function surroundings() {
    try {
      const body = window.parent.document.body;
      return body.dataset.mdColorScheme ? body : null;
    } catch { return null; } // another origin's
  }

  story.ontoggle = () => {
    if (story.lastChild.childElementCount) return;
    story.lastChild.innerHTML = eventful.map((time) => [time, sentence(time)]).filter(([, text]) => text)
      .map(([time, text]) => `<li><a href="#${time}">${time}</a> ${text}</li>`).join("");
  };
  story.onclick = (event) => { if (event.target.tagName === "A") { event.preventDefault(); go(+event.target.textContent); } };
  // On paper: a strip of key moments, at most six with a message between the first and the last.
  addEventListener("beforeprint", () => {
    story.open = true;
    const last = withMessages.length - 1, picked = new Set([0, 1, 2, 3, 4, 5].map((each) => withMessages[Math.round((each * last) / 5)]));
    moments.innerHTML = [...picked, end].filter((time) => time !== undefined).map((time) => `<figure><figcaption>tick ${time}: ${sentence(time)}</figcaption>`
      + ranks.map((_, rank) => `<div class="rank" style="--color:${color(rank)}"><span class="badge">rank ${rank}</span>${contents(rank, time)}</div>`).join("") + "</figure>").join("");
  });
  speed.onchange = () => { if (timer) { stop(); toggle(); } };
  slider.oninput = () => go(+slider.value);
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", () => { const time = +location.hash.slice(1); if (location.hash.length > 1 && !Number.isNaN(time)) go(time); });
  const again = () => { settle(); drawStrip(); draw(); };
  addEventListener("resize", again);
  if (root.dataset.address !== undefined && /^#\d+$/.test(location.hash)) tick = Math.min(end, +location.hash.slice(1));
  again();
  if (small && !matchMedia("(prefers-reduced-motion: reduce)").matches)
    new IntersectionObserver((entries) => { if (entries.some((each) => each.isIntersecting) !== !!timer) toggle(); }).observe(root);
}
