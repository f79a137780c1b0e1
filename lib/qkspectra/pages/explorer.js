(() => {
  "use strict";
  const root = document.currentScript.closest(".qk-explorer");
  const part = (name) => root.querySelector(`[data-qk="${name}"]`);
  const data = JSON.parse(part("data").textContent);
  const keys = data.measures.map(([key]) => key);
  const behaviours = ["previous_token", "induction", "duplicate_token"];
  const chosen = { model: 0, layer: 0, head: 0, state: 0, colour: "eigen_rotation" };

  // Rows of a packed matrix; see qkspectra/explorer.py.
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed.data), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return (row) => Array.from({ length: packed.columns }, (_, column) => {
      const whole = view.getInt16(2 * (row * packed.columns + column), true);
      return whole === -32768 ? NaN : whole * packed.scale;
    });
  };
  const unpacked = new Map();
  const rowOf = (packed, row) => {
    if (!unpacked.has(packed)) unpacked.set(packed, unpack(packed));
    return unpacked.get(packed)(row);
  };
  const pairs = (values) => Array.from({ length: values.length / 2 }, (_, i) => [values[2 * i], values[2 * i + 1]]);

  const show = (value) => {
    if (value === null || Number.isNaN(value)) return "–";
    if (typeof value === "string") return value;
    const text = Number.isInteger(value) ? String(value) : Math.abs(value) >= 1000 ? value.toFixed(0) : String(+value.toPrecision(3));
    return text.replace("-", "−");
  };
  const name = (layer, head) => `L${layer}H${head}`;
  const model = () => data.models[chosen.model];
  const state = () => model().states[chosen.state];
  const index = (layer = chosen.layer, head = chosen.head) => layer * model().heads + head;
  const column = (key) => state().rows.map((row) => row[keys.indexOf(key)]);
  const measured = (key) => column(key).some((value) => typeof value === "number");

  const fill = (select, entries, value) => {
    select.replaceChildren(...entries.map(([key, text]) => new Option(text, key)));
    select.value = value;
  };
  const count = (number) => Array.from({ length: number }, (_, i) => [i, i]);

  const svg = (tag, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const frame = (x0, y0, x1, y1, xTicks, yTicks, xLabel, yLabel) => {
    const parts = [svg("path", { d: `M${x0} ${y0}V${y1}H${x1}`, fill: "none", stroke: "var(--qk-soft)" })];
    for (const [at, text] of xTicks) parts.push(svg("text", { x: at, y: y1 + 15, "text-anchor": "middle" }, text));
    for (const [at, text] of yTicks) parts.push(svg("text", { x: x0 - 5, y: at + 4, "text-anchor": "end" }, text));
    parts.push(svg("text", { x: (x0 + x1) / 2, y: y1 + 32, "text-anchor": "middle" }, xLabel));
    parts.push(svg("text", { x: 12, y: (y0 + y1) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(y0 + y1) / 2})` }, yLabel));
    return parts;
  };

  const portrait = () => {
    const values = pairs(rowOf(state().eigenvalues, index()));
    const cloud = pairs(rowOf(model().cloud, 0));
    const reach = 1.1 * Math.max(1.1, ...values.map(([re, im]) => Math.hypot(re, im)));
    const x = (re) => 175 + (135 * re) / reach;
    const y = (im) => 145 - (135 * im) / reach;
    const dots = (points, radius, colour) => svg("path", {
      d: points.map(([re, im]) => `M${x(re).toFixed(1)} ${y(im).toFixed(1)}h0`).join(""),
      stroke: colour, "stroke-width": 2 * radius, "stroke-linecap": "round", fill: "none",
    });
    const tick = reach > 3 ? Math.floor(reach / 2) : 1;
    const ticks = [-tick, 0, tick];
    part("portrait").replaceChildren(
      ...frame(40, 10, 310, 280, ticks.map((t) => [x(t), show(t)]), ticks.map((t) => [y(t), show(t)]), "Re λ", "Im λ"),
      dots(cloud, 0.8, "var(--qk-pale)"),
      svg("circle", { cx: x(0), cy: y(0), r: 135 / reach, fill: "none", stroke: "var(--qk-soft)" }),
      dots(values, 2.4, "var(--qk-mark)"),
    );
    const largest = Math.max(...values.map(([re, im]) => Math.hypot(re, im)));
    part("portrait").setAttribute("aria-label", `${values.length} eigenvalues in the complex plane; random heads fill the unit disc, the largest of this head has modulus ${show(largest)}.`);
  };

  const bars = (place, series, labels, xLabel, yLabel, top) => {
    const length = series[0].length;
    const width = 255 / length;
    const y = (value) => 275 - (260 * value) / top;
    const drawn = series.flatMap((values, s) => values.map((value, i) => svg("rect", {
      x: (50 + width * (i + 0.15) + (s * 0.7 * width) / series.length).toFixed(2), y: y(value).toFixed(2),
      width: ((0.7 * width) / series.length).toFixed(2), height: Math.max(0, 275 - y(value)).toFixed(2),
      fill: s ? "var(--qk-warm)" : "var(--qk-mark)",
    })));
    const ticks = labels.map(([i, text]) => [50 + width * (i + 0.5), text]);
    place.replaceChildren(...frame(50, 15, 305, 275, ticks, [[y(0), "0"], [y(top), show(top)]], xLabel, yLabel), ...drawn);
  };
  const missing = (place, text) => {
    place.replaceChildren(svg("text", { x: 160, y: 160, "text-anchor": "middle" }, text));
    place.setAttribute("aria-label", text);
  };

  const offsets = () => {
    const place = part("offsets");
    if (!state().offsets) return missing(place, "not measured: the model was not run");
    const values = rowOf(state().offsets, index());
    const marks = [1, Math.round(values.length / 2), values.length - 1];
    bars(place, [values], marks.map((i) => [i, i]), "positions back", "mean attention", 1);
    const best = values.indexOf(Math.max(...values));
    place.setAttribute("aria-label", `Mean attention by distance: highest, ${show(values[best])}, at ${best} positions back.`);
  };

  const phase = () => {
    const place = part("phase");
    if (!state().even) return missing(place, "no rotary positions, so no phase");
    const even = rowOf(state().even, index());
    const odd = rowOf(state().odd, index());
    if (Number.isNaN(even[0])) return missing(place, "this layer has no rotary positions");
    const theta = rowOf(model().theta, index());
    const top = Math.max(...even, ...odd);
    const marks = [0, Math.floor(even.length / 2), even.length - 1];
    const wave = (t) => (theta[t] > 0 ? show(+((2 * Math.PI) / theta[t]).toPrecision(2)) : "");
    bars(place, [even, odd], marks.map((i) => [i, wave(i)]), "wavelength of the frequency, in tokens", "share of the energy", top);
    const total = odd.reduce((sum, value) => sum + value, 0);
    place.setAttribute("aria-label", `Energy of the operator by frequency, even part and phase; the phase holds ${show(total)} of it.`);
  };

  const table = () => {
    const row = state().rows[index()];
    part("rows").replaceChildren(...data.measures.filter(([key]) => measured(key)).map(([key, label]) => {
      const value = row[keys.indexOf(key)];
      const band = model().null[key];
      const all = column(key).filter((other) => typeof other === "number");
      const rank = typeof value === "number" ? `${1 + all.filter((other) => other > value).length} of ${all.length}` : "–";
      const line = document.createElement("tr");
      for (const text of [label, show(value), band ? `${show(band[1])} to ${show(band[2])}` : "", rank]) {
        const cell = document.createElement(text === label ? "th" : "td");
        if (text === label) cell.scope = "row";
        cell.textContent = text;
        line.append(cell);
      }
      return line;
    }));
  };

  const colours = () => {
    const values = column(chosen.colour).map((value) => (typeof value === "number" ? value : NaN));
    const known = values.filter((value) => !Number.isNaN(value));
    const [low, high] = [Math.min(...known), Math.max(...known)];
    part("low").textContent = show(low);
    part("high").textContent = show(high);
    const label = data.measures[keys.indexOf(chosen.colour)][1];
    [...part("map").children].forEach((button, i) => {
      const value = values[i];
      button.style.setProperty("--qk-share", Number.isNaN(value) || high === low ? 0 : (100 * (value - low)) / (high - low));
      button.setAttribute("aria-label", `${button.title}, ${label} ${show(value)}`);
    });
  };

  const select = (layer, head, focus = false) => {
    Object.assign(chosen, { layer, head });
    part("layer").value = layer;
    part("head").value = head;
    [...part("map").children].forEach((button, i) => {
      const here = i === index();
      button.setAttribute("aria-pressed", here);
      button.tabIndex = here ? 0 : -1;
      if (here && focus) button.focus();
    });
    const at = state().step === null ? "" : `, step ${state().step}`;
    part("title").textContent = `${model().name}, ${name(layer, head)}${at}`;
    [...part("jump").options].forEach((option) => { if (option.value === name(layer, head)) part("jump").value = option.value; });
    portrait();
    offsets();
    phase();
    table();
  };

  const strongest = () => {
    const ranked = behaviours.filter(measured).length ? behaviours.slice(0, 2) : ["eigen_rotation"];
    const entries = ranked.flatMap((key) => {
      const values = column(key);
      const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]).slice(0, 5);
      const label = data.measures[keys.indexOf(key)][1];
      return order.map((i) => {
        const head = name(Math.floor(i / model().heads), i % model().heads);
        return [head, `${head}, ${label} ${show(values[i])}`];
      });
    });
    fill(part("jump"), entries, entries[0][0]);
    return entries[0][0];
  };
  const go = (label, focus) => {
    const [, layer, head] = /^L(\d+)H(\d+)$/.exec(label) || [];
    if (Number(layer) < model().layers && Number(head) < model().heads) select(Number(layer), Number(head), focus);
  };

  const enter = () => {
    const { layers, heads, states } = model();
    chosen.state = states.length - 1;
    fill(part("layer"), count(layers), 0);
    fill(part("head"), count(heads), 0);
    part("step-label").hidden = states.length < 2;
    part("step").max = states.length - 1;
    part("step").value = chosen.state;
    part("step-name").value = state().step ?? "";
    fill(part("colour"), data.measures.filter(([key]) => measured(key)), measured(chosen.colour) ? chosen.colour : "eigen_rotation");
    const map = part("map");
    map.style.gridTemplateRows = `repeat(${heads}, auto)`;
    map.replaceChildren(...Array.from({ length: layers * heads }, (_, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = name(Math.floor(i / heads), i % heads);
      return button;
    }));
    colours();
    go(strongest());
  };

  fill(part("model"), data.models.map((each, i) => [i, `${each.name} (${each.scheme})`]), 0);
  part("model").addEventListener("change", (event) => { chosen.model = Number(event.target.value); enter(); });
  part("layer").addEventListener("change", (event) => select(Number(event.target.value), chosen.head));
  part("head").addEventListener("change", (event) => select(chosen.layer, Number(event.target.value)));
  part("jump").addEventListener("change", (event) => go(event.target.value));
  part("colour").addEventListener("change", (event) => { chosen.colour = event.target.value; colours(); });
  part("step").addEventListener("input", (event) => {
    chosen.state = Number(event.target.value);
    part("step-name").value = state().step;
    colours();
    strongest();
    select(chosen.layer, chosen.head);
  });
  part("map").addEventListener("click", (event) => { if (event.target.title) go(event.target.title); });
  part("map").addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const ends = { Home: [0, 0], End: [model().layers - 1, model().heads - 1] };
    const move = moves[event.key];
    const [layer, head] = move ? [chosen.layer + move[0], chosen.head + move[1]] : ends[event.key] || [-1, -1];
    if (!move && layer < 0) return;
    event.preventDefault();
    if (layer >= 0 && head >= 0 && layer < model().layers && head < model().heads) select(layer, head, true);
  });
  const linked = () => {
    const [, wanted, head] = /^#head=([^/]+)\/(L\d+H\d+)$/.exec(decodeURIComponent(location.hash)) || [];
    const found = data.models.findIndex((each) => each.name === wanted);
    if (found < 0) return;
    chosen.model = found;
    part("model").value = found;
    enter();
    go(head);
  };
  part("model").closest(".qk-body").hidden = false;
  enter();
  linked();
  window.addEventListener("hashchange", linked);
})();
