// Interactive parts of a report. They are added to a page that is complete without them, and use only numbers stored in
// the page. Text is inserted as text nodes and attributes only.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }
  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const ink = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const button = (label, click, more = {}) => make("button", { type: "button", click, ...more }, label);
  const readData = (element) => JSON.parse(element.querySelector(":scope > script").textContent);

  let controlCount = 0;
  const labeled = (label, control) => {
    control.id = `control-${++controlCount}`;
    return make("label", { for: control.id }, `${label} `, control);
  };

  // Tooltips, which are also announced to screen readers

  const tip = make("div", { class: "tip", hidden: true });
  const status = make("div", { class: "unseen", role: "status" });
  document.body.append(tip, status);

  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${y - height - 12 < 0 ? y + 18 : y - height - 12}px`;
  }
  const hideTip = () => { tip.hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  // Marks of a figure are [x, y, text] in view box coordinates. Arrow keys move between them.
  function follow(svg, marks) {
    const dot = ink("circle", { r: 4, class: "dot", visibility: "hidden" });
    let at = 0;
    const point = (index, aloud) => {
      const current = marks();
      if (!current.length) return;
      at = Math.max(0, Math.min(index, current.length - 1));
      const [x, y, words] = current[at], place = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
      fill(dot, { cx: x, cy: y, visibility: "visible" }, []);
      svg.append(dot);
      showTip(words, place.x, place.y);
      if (aloud) status.textContent = words;
    };
    const leave = () => { dot.setAttribute("visibility", "hidden"); hideTip(); };
    fill(svg, {
      tabindex: "0",
      pointermove: (event) => {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        const distance = ([x, y]) => 9 * (x - p.x) ** 2 + (y - p.y) ** 2;
        point(marks().reduce((best, mark, i, list) => (distance(mark) < distance(list[best]) ? i : best), 0), false);
      },
      pointerleave: leave,
      blur: leave,
      focus: () => { if (svg.matches(":focus-visible")) point(at, true); },
      keydown: (event) => {
        const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -1e9, End: 1e9 }[event.key];
        if (step) { event.preventDefault(); point(at + step, true); }
      },
    }, []);
  }

  // Explanations of terms, on hover and on keyboard focus. Inside a button, the button takes the focus.
  function terms() {
    for (const term of all("abbr[title]")) {
      const words = term.title, host = term.closest("button") || term;
      const show = (aloud) => {
        const box = term.getBoundingClientRect();
        showTip(words, box.left, box.top);
        if (aloud) status.textContent = words;
      };
      term.removeAttribute("title");
      fill(term, { pointerenter: () => show(false), pointerleave: hideTip }, []);
      fill(host, { tabindex: "0", blur: hideTip, focus: () => { if (host.matches(":focus-visible")) show(true); } }, []);
    }
  }

  // Downloads

  const slug = (text) => {
    const short = text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
    return short.replace(/^-|-$/g, "") || "page";
  };

  function download(name, kind, text) {
    const url = URL.createObjectURL(new Blob([text], { type: kind }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  // Return the text of a cell and its small second line, without text for screen readers.
  function cellText(cell) {
    const copy = cell.cloneNode(true);
    const small = all("small", copy).map((part) => { part.remove(); return tidy(part.textContent); }).join(" ");
    all(".unseen", copy).forEach((part) => part.remove());
    return [tidy((copy.querySelector("code") || copy).textContent), small];
  }
  const tidy = (text) => text.replace(/[\u2068\u2069]/g, "").replace(/\u00a0/g, " ").replace(/\u2212/g, "-")
    .replace(/\s+/g, " ").trim();
  const bare = (text) => (/^-?[\d,]+(\.\d+)?$/.test(text) ? text.replace(/,/g, "") : text);

  function csv(head, rows) {
    const lines = [head, ...rows].map((cells) => cells.map(cellText));
    const small = lines[0].map((_, j) => lines.slice(1).some((cells) => cells[j] && cells[j][1]));
    const quoted = (text) => {
      const safe = /^\s*[=+\-@]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
      return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
    };
    const flat = (cells, first) => cells.flatMap(([value, more], j) => {
      const detail = first ? `${value || "value"}, detail` : more;
      return small[j] ? [bare(value), detail] : [bare(value)];
    });
    return lines.map((cells, i) => flat(cells, i === 0).map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  function standaloneSvg(svg) {
    const copy = svg.cloneNode(true), style = getComputedStyle(document.documentElement);
    all(".dot", copy).forEach((dot) => dot.remove());
    fill(copy, { xmlns: SVG, "xmlns:xlink": "http://www.w3.org/1999/xlink" }, []);
    const value = (name) => style.getPropertyValue(name).trim();
    const text = new XMLSerializer().serializeToString(copy);
    return text.replace(/var\((--\w+)\)/g, (_, name) => value(name)).replace(/currentColor/g, value("--ink"));
  }

  // Tables

  const collator = new Intl.Collator(undefined, { numeric: true });

  function number(text) {
    if (/^[-+]?inf/.test(text)) return text.startsWith("-") ? -Infinity : Infinity;
    const match = text.replace(/,/g, "").match(/^[<>p= [\]]*([-+]?\d+(\.\d+)?(e[-+]?\d+)?)/i);
    return match ? Number(match[1]) : NaN;
  }

  // The rows of a table: sorted, filtered by a search, and folded until "Show all".
  class Rows {
    constructor(table, first) {
      this.body = table.tBodies[0];
      this.rows = this.order = [...this.body.rows];
      this.first = first;
      this.everything = this.rows.length <= first;
      this.wanted = "";
    }
    get data() { return this.order.filter((row) => !row.matches(".group")); }
    place() {
      all("tr.detail", this.body).forEach((row) => row.remove());
      all("[aria-expanded=true]", this.body).forEach((one) => one.setAttribute("aria-expanded", "false"));
      this.body.append(...this.order);
      let count = 0;
      for (const row of this.order) {
        const fits = row.matches(".group") || row.cells[0].textContent.toLowerCase().includes(this.wanted);
        row.hidden = !fits || (!this.everything && !this.wanted && count >= this.first);
        if (fits) count += 1;
      }
    }
  }

  function enrich(scroll) {
    const long = scroll.closest(".long"), table = scroll.querySelector("table"), first = table.tBodies[0].rows.length;
    if (long) {
      all("details tbody tr", long).forEach((row) => table.tBodies[0].append(row));
      all("details", long).forEach((part) => part.remove());
    }
    const rows = new Rows(table, first), head = [...table.tHead.rows[0].cells];
    const name = scroll.getAttribute("aria-label");
    const tools = make("div", { class: "tools" }), searched = rows.rows.length > 8;
    if (rows.rows.length > 2 && cellText(head[0])[0]) head.forEach((cell, j) => sortable(rows, head, cell, j));
    if (searched) tools.append(searcher(rows, name));
    if (!rows.everything) tools.append(opener(rows));
    const save = () => download(`${slug(name)}.csv`, "text/csv", csv(head, rows.data.map((row) => [...row.cells])));
    tools.append(button("CSV", save, { "aria-label": `Download ${name} as CSV` }));
    if (searched) scroll.before(tools); else scroll.after(tools);
    rows.place();
  }

  // A click on a heading sorts, the second reverses, the third restores the order.
  function sortable(rows, head, cell, j) {
    const label = make("button", { type: "button", class: "sort" });
    label.append(...cell.childNodes);
    cell.append(label);
    const texts = rows.data.map((row) => cellText(row.cells[j])[0]).filter((text) => text && text !== "\u2013");
    const numeric = texts.length > 0 && texts.every((text) => !Number.isNaN(number(text)));
    const ways = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    label.addEventListener("click", () => {
      const next = ways[ways.indexOf(cell.getAttribute("aria-sort")) + 1];
      head.forEach((other) => other.removeAttribute("aria-sort"));
      if (next) cell.setAttribute("aria-sort", next);
      rows.order = next ? sorted(rows.rows, j, numeric, next === "descending" ? -1 : 1) : rows.rows;
      rows.place();
    });
  }

  function searcher(rows, name) {
    const search = make("input", { type: "search", placeholder: "search", "aria-label": `Search ${name}` });
    search.addEventListener("input", () => {
      rows.wanted = search.value.trim().toLowerCase();
      rows.place();
    });
    return search;
  }

  function opener(rows) {
    const more = button(`Show all ${rows.rows.length}`, () => {
      rows.everything = !rows.everything;
      more.textContent = rows.everything ? `Show ${rows.first}` : `Show all ${rows.rows.length}`;
      rows.place();
    });
    return more;
  }

  function sorted(rows, column, numeric, sign) {
    const result = [];
    let block = [];
    const end = () => {
      const keyed = block.map((row) => [cellText(row.cells[column])[0], row]);
      keyed.sort(([a], [b]) => {
        if (!numeric) return sign * collator.compare(a, b);
        const [x, y] = [number(a), number(b)];
        return Number.isNaN(x) ? (Number.isNaN(y) ? 0 : 1) : Number.isNaN(y) ? -1 : sign * (x > y ? 1 : x < y ? -1 : 0);
      });
      result.push(...keyed.map(([, row]) => row));
      block = [];
    };
    for (const row of rows) {
      if (row.matches(".group")) { end(); result.push(row); } else block.push(row);
    }
    end();
    return result;
  }

  // Figures

  function figures() {
    for (const figure of all("figure")) {
      const svg = figure.querySelector("svg");
      const marks = figure.querySelector(":scope > script") ? readData(figure) : [];
      if (marks.length) follow(svg, () => marks);
      figure.append(saver(svg, svg.getAttribute("aria-label").split(":")[0]));
    }
  }
  const saver = (svg, name) => make("div", { class: "tools" }, button("SVG",
    () => download(`${slug(name)}.svg`, "image/svg+xml", standaloneSvg(svg)), { "aria-label": `Download ${name} as SVG` }));

  // A reliability diagram. A layer has cells [bin, count, mean probability, frequency, and perhaps its limits], shares in
  // millionths. The last layer is the highlighted one.
  const LEFT = 44, TOP = 8, SIDE = 280, FLOOR = TOP + SIDE + 62, LOW = 48;
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
  const across = (share) => LEFT + SIDE * share, up = (share) => TOP + SIDE * (1 - share);

  function diagram(label) {
    const viewBox = `0 0 ${LEFT + SIDE + 20} ${FLOOR + 36}`;
    const svg = ink("svg", { viewBox, role: "img", class: "diagram", "aria-label": label });
    let marks = [];
    follow(svg, () => marks);
    const draw = (layers, words) => {
      const last = layers.length - 1;
      const drawn = layers.map((one, i) => layer(one, words, i === last, last > 0));
      svg.replaceChildren(...frame(words), ...drawn.flatMap(([parts]) => parts));
      marks = drawn.flatMap(([, some]) => some).sort((one, other) => one[0] - other[0]);
    };
    return { svg, draw };
  }

  const line = (from, to, more) => ink("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], ...more });
  const text = (words, at, more = {}) => ink("text",
    { x: at[0], y: at[1], "font-size": 10, fill: "currentColor", "text-anchor": "middle", ...more }, words);

  function frame(words) {
    const soft = { stroke: "var(--soft)" }, ticks = [0, 0.2, 0.4, 0.6, 0.8, 1];
    return [
      ink("rect", { x: LEFT, y: TOP, width: SIDE, height: SIDE, fill: "none", stroke: "var(--line)" }),
      line([across(0), up(0)], [across(1), up(1)], { ...soft, "stroke-dasharray": "4 3" }),
      line([LEFT, FLOOR], [LEFT + SIDE, FLOOR], soft),
      text(words.probability, [LEFT + SIDE / 2, FLOOR + 30]),
      text(words.frequency, [0, 0], { transform: `translate(10 ${TOP + SIDE / 2}) rotate(-90)` }),
      ...ticks.map((share) => text(`${100 * share}%`, [across(share), FLOOR + 14])),
      ...ticks.map((share) => text(`${100 * share}%`, [LEFT - 5, up(share) + 3], { "text-anchor": "end" })),
    ];
  }

  // Return the elements of a layer and its marks.
  function layer({ name, cells }, words, main, named) {
    const color = main ? "var(--blue)" : "var(--soft)", most = Math.max(...cells.map(([, n]) => n));
    const total = cells.reduce((sum, [, n]) => sum + n, 0), marks = [], path = [], parts = [];
    for (const [bin, n, c, a, ...limits] of cells) {
      const x = across(c / 1e6), y = up(a / 1e6), [from, to] = [bin, bin + 1].map((end) => end / words.bins);
      const room = limits.length ? limits.map((share) => share / 1e6) : null;
      if (room) parts.push(line([x, up(room[0])], [x, up(room[1])], { stroke: color, opacity: 0.7 }));
      parts.push(ink("circle", { cx: x, cy: y, r: 2 + 3.5 * Math.sqrt(n / total), fill: color }));
      if (main) {
        const height = LOW * n / most, width = SIDE / words.bins - 1;
        parts.push(ink("rect", { x: across(from) + 0.5, y: FLOOR - height, width, height, fill: color }));
      }
      path.push(`${x},${y}`);
      marks.push([x, y, [
        `${named ? `${name}: ` : ""}${words.probability} ${(100 * from).toFixed(0)} to ${percent(to, 0)}`,
        `: ${words.frequency} ${percent(a / 1e6)}`,
        room ? `, ${words.level} interval ${(100 * room[0]).toFixed(1)} to ${percent(room[1])}` : "",
        `; mean ${words.probability} ${percent(c / 1e6)}; ${n.toLocaleString("en-US")} ${words.units}`,
      ].join("")]);
    }
    parts.unshift(ink("polyline", { points: path.join(" "), fill: "none", stroke: color, "stroke-width": 1.5 }));
    return [parts, marks];
  }

  // Tiles with changing texts

  function tileList(names) {
    const list = make("dl", { class: "tiles" });
    const cells = names.map((name) => {
      const large = make("span"), small = make("small");
      list.append(make("div", {}, make("dt", {}, name), make("dd", {}, large, small)));
      return [large, small];
    });
    const show = (texts) => texts.forEach(([large, small], i) => {
      cells[i][0].textContent = large;
      cells[i][1].textContent = small || "";
    });
    return [list, show];
  }

  const choice = (names) => make("select", {}, ...names.map(([value, name]) => make("option", { value }, name)));
  const range = (steps, value) => make("input", { type: "range", min: 0, max: Math.max(0, steps - 1), step: 1, value });
  const setOutput = (slider, output, words) => {
    output.textContent = words;
    slider.setAttribute("aria-valuetext", words);
  };

  const widgets = {
    // Predictions at a temperature, or after a calibrator
    temperature(place, { words, heading, note, reference, steps, one, maps, tiles }) {
      const chart = diagram("Reliability diagram that the controls beside it redraw"), [list, show] = tileList(tiles);
      const byHand = steps.length ? [[-1, "temperature slider"]] : [];
      const choose = choice([...byHand, ...maps.map(({ name }, i) => [i, name])]);
      const slider = range(steps.length, one), output = make("output"), before = steps.length ? steps[one] : maps[0];
      const update = () => {
        const by = Number(choose.value), step = by < 0 ? steps[slider.value] : maps[by];
        slider.disabled = by >= 0;
        setOutput(slider, output, by < 0 ? step.name : "");
        show(step.tiles);
        const background = step === before ? [] : [{ name: reference, cells: before.cells }];
        chart.draw([...background, { name: step.name, cells: step.cells }], words);
      };
      const stop = (index) => () => {
        choose.value = "-1";
        slider.value = index;
        update();
      };
      const stops = steps.flatMap((step, i) => (step.stop ? [button(step.stop, stop(i))] : []));
      const controls = make("div", { class: "controls" }, labeled("Calibrator", choose));
      if (steps.length) {
        controls.append(labeled("Temperature T", slider), output, make("div", { class: "tools" }, ...stops));
      }
      choose.addEventListener("change", update);
      slider.addEventListener("input", update);
      const picture = make("figure", {}, chart.svg, saver(chart.svg, "Reliability diagram"));
      place.append(make("h3", {}, heading), make("p", { class: "note" }, note),
        make("div", { class: "pair" }, picture, make("div", {}, controls, list)));
      update();
    },

    // A threshold and its expected cost. Rows are [threshold, share acted on, precision, recall, and as texts: share,
    // error, interval of the error].
    threshold(place, { heading, note, tables, base, words }) {
      const [list, show] = tileList(words.tiles), choose = choice(tables.map(({ name }, i) => [i, name]));
      const steps = tables[0].rows.map(([c]) => c), output = make("output");
      const slider = range(steps.length, steps.findIndex((c) => c >= 0.9));
      const advice = make("p", { class: "note", role: "status" });
      const costs = [10, 1].map((value) => make("input", { type: "number", min: 0, step: "any", value }));
      const at = (c) => percent(c, c > 0.99 ? 2 : 0);
      const price = ([, share, precision, recall]) => {
        const [wrong, left] = costs.map((input) => Math.max(0, Number(input.value) || 0));
        return wrong * (share ? share * (1 - precision) : 0) + left * (base === null ? 1 - share : base * (1 - recall));
      };
      const update = () => {
        const { rows } = tables[Number(choose.value)], [c, , , , acted, error, room] = rows[slider.value];
        const best = rows.reduce((least, row) => (price(row) < price(least) - 1e-12 ? row : least));
        setOutput(slider, output, `${words.probability} at least ${at(c)}`);
        show([[acted, words.share], [error, room], [price(rows[slider.value]).toFixed(4), words.each]]);
        advice.textContent = `${words.cheapest} ${at(best[0])}, ${price(best).toFixed(4)} ${words.each}.`;
      };
      const several = tables.length > 1 ? [labeled("Predictions", choose)] : [];
      const controls = make("div", { class: "controls" }, ...several,
        labeled(words.slider, slider), output, ...costs.map((input, i) => labeled(words.costs[i], input)));
      [choose, slider, ...costs].forEach((control) => control.addEventListener("input", update));
      place.append(make("h3", {}, heading), make("p", { class: "note" }, note), controls, list, advice);
      update();
    },

    // A class opens its curve and its most confident errors
    classes(place, { words, names, rows, head }) {
      const table = place.closest("section").querySelector("table"), colspan = table.tHead.rows[0].cells.length;
      const row = (tag, texts, more = {}) => make("tr", {}, ...texts.map((words_) => make(tag, more, words_)));
      const detail = (name, { layers, mistakes }) => {
        const chart = diagram(`Reliability diagram, ${name}`);
        chart.draw(layers.map((cells, i) => ({ name: names[i], cells })), words);
        const list = make("table", {}, make("caption", {}, mistakes?.length ? words.mistakes : words.none));
        if (mistakes?.length) {
          list.append(make("thead", {}, row("th", head, { scope: "col" })),
            make("tbody", {}, ...mistakes.map((cells) => row("td", cells))));
        }
        const picture = make("figure", {}, make("figcaption", {}, name), chart.svg, saver(chart.svg, name));
        const inside = make("div", { class: "pair" }, picture, ...(mistakes ? [make("div", {}, list)] : []));
        return make("tr", { class: "detail" }, make("td", { colspan }, inside));
      };
      [...table.tBodies[0].rows].slice(0, rows.length).forEach((line_, i) => {
        const cell = line_.cells[0], name = cell.textContent;
        const open = button(name, () => {
          const closed = open.getAttribute("aria-expanded") === "false";
          open.setAttribute("aria-expanded", String(closed));
          if (closed) line_.after(detail(name, rows[i])); else line_.nextElementSibling.remove();
        }, { class: "opens", "aria-expanded": "false" });
        cell.replaceChildren(open);
      });
    },
  };

  // The page

  function contents() {
    const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        const link = links.get(target.id), strip = link.closest("ol");
        link.setAttribute("aria-current", "true");
        strip.scrollLeft = link.offsetLeft - strip.clientWidth / 3;
      }
    }, { rootMargin: "-15% 0px -80% 0px" });
    links.forEach((_, id) => seen.observe(document.getElementById(id)));
  }

  function copies() {
    for (const block of all("pre")) {
      const copy = button("Copy", async () => {
        try { await navigator.clipboard.writeText(block.textContent); } catch {
          getSelection().selectAllChildren(block);
          document.execCommand("copy");
        }
        copy.textContent = "Copied";
        status.textContent = "Copied";
        setTimeout(() => { copy.textContent = "Copy"; }, 1500);
      });
      block.setAttribute("tabindex", "0");
      block.after(make("div", { class: "tools" }, copy));
    }
  }

  document.documentElement.classList.add("alive");
  contents();
  figures();
  all(".long > .scroll, .scroll:not(.long *)").forEach(enrich);
  for (const place of all(".play")) {
    const data = readData(place);
    place.hidden = false;
    widgets[place.dataset.kind](place, data);
  }
  terms();
  copies();
})();
