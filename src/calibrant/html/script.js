// What can be done with the page beyond reading it. Everything here is added to what stands there already, from the
// numbers that the page holds; texts enter as text nodes and attributes only.
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
  const held = (element) => JSON.parse(element.querySelector(":scope > script").textContent);

  let made = 0;
  const labeled = (label, control) => {
    control.id = `control-${++made}`;
    return make("label", { for: control.id }, `${label} `, control);
  };

  // What is said under the pointer, and to who cannot see it

  const tip = make("div", { class: "tip", hidden: true });
  const status = make("div", { class: "unseen", role: "status" });
  document.body.append(tip, status);

  function say(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - width - 4))}px`;
    tip.style.top = `${y - height - 12 < 0 ? y + 18 : y - height - 12}px`;
  }
  const hush = () => { tip.hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });

  // Marks of a figure are [x, y, words] in the numbers of its view box; arrow keys go from one to the next.
  function follow(svg, marks) {
    const dot = ink("circle", { r: 4, class: "dot", visibility: "hidden" });
    let at = 0;
    const point = (index, aloud) => {
      const known = marks();
      if (!known.length) return;
      at = Math.max(0, Math.min(index, known.length - 1));
      const [x, y, words] = known[at], place = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
      fill(dot, { cx: x, cy: y, visibility: "visible" }, []);
      svg.append(dot);
      say(words, place.x, place.y);
      if (aloud) status.textContent = words;
    };
    const leave = () => { dot.setAttribute("visibility", "hidden"); hush(); };
    fill(svg, {
      tabindex: "0",
      pointermove: (event) => {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        const far = ([x, y]) => 9 * (x - p.x) ** 2 + (y - p.y) ** 2;
        point(marks().reduce((best, mark, i, known) => (far(mark) < far(known[best]) ? i : best), 0), false);
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

  // Terms say what they mean to the pointer and to the keyboard; inside a button it is the button that is reached.
  function terms() {
    for (const term of all("abbr[title]")) {
      const words = term.title, host = term.closest("button") || term;
      const show = (aloud) => {
        const box = term.getBoundingClientRect();
        say(words, box.left, box.top);
        if (aloud) status.textContent = words;
      };
      term.removeAttribute("title");
      fill(term, { pointerenter: () => show(false), pointerleave: hush }, []);
      fill(host, { tabindex: "0", blur: hush, focus: () => { if (host.matches(":focus-visible")) show(true); } }, []);
    }
  }

  // Files

  const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "page";

  function download(name, kind, text) {
    const url = URL.createObjectURL(new Blob([text], { type: kind }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  // What a cell says, without what is only for some eyes: the value, and what stands below it in small letters.
  function said(cell) {
    const copy = cell.cloneNode(true);
    const small = all("small", copy).map((part) => { part.remove(); return tidy(part.textContent); }).join(" ");
    all(".unseen, .plain", copy).forEach((part) => part.remove());
    return [tidy((copy.querySelector("code") || copy).textContent), small];
  }
  const tidy = (text) => text.replace(/\u00a0/g, " ").replace(/\u2212/g, "-").replace(/\s+/g, " ").trim();
  const bare = (text) => (/^-?[\d,]+(\.\d+)?$/.test(text) ? text.replace(/,/g, "") : text);

  function csv(head, rows) {
    const lines = [head, ...rows].map((cells) => cells.map(said));
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

  function drawn(svg) {
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
    const found = text.replace(/,/g, "").match(/^[<>p= [\]]*([-+]?\d+(\.\d+)?(e[-+]?\d+)?)/i);
    return found ? Number(found[1]) : NaN;
  }

  function enrich(scroll) {
    const long = scroll.parentElement.matches(".long") ? scroll.parentElement : null;
    const table = scroll.querySelector("table"), body = table.tBodies[0], head = [...table.tHead.rows[0].cells];
    const shown = body.rows.length;
    if (long) {
      all("details tbody tr", long).forEach((row) => body.append(row));
      all("details", long).forEach((part) => part.remove());
    }
    const rows = [...body.rows], name = scroll.getAttribute("aria-label");
    const tools = make("div", { class: "tools" });
    let everything = !long || rows.length <= shown, wanted = "";

    const close = () => all("tr.detail", body).forEach((row) => row.remove());
    const place = (order) => {
      close();
      body.append(...order);
      all("[aria-expanded=true]", body).forEach((one) => one.setAttribute("aria-expanded", "false"));
      let count = 0;
      for (const row of order) {
        const fits = row.matches(".group") || row.cells[0].textContent.toLowerCase().includes(wanted);
        row.hidden = !fits || (!everything && !wanted && count >= shown);
        if (fits) count += 1;
      }
    };
    let order = rows;

    if (rows.length > 2 && said(head[0])[0]) {
      head.forEach((cell, j) => {
        const label = make("button", { type: "button", class: "sort" });
        label.append(...cell.childNodes);
        cell.append(label);
        const values = rows.filter((row) => !row.matches(".group")).map((row) => said(row.cells[j])[0]);
        const known = values.filter((text) => text && text !== "\u2013");
        const numeric = known.length > 0 && known.every((text) => !Number.isNaN(number(text)));
        label.addEventListener("click", () => {
          const way = cell.getAttribute("aria-sort"), [first, last] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
          const next = way === first ? last : way === last ? null : first;
          head.forEach((other) => other.removeAttribute("aria-sort"));
          if (next) cell.setAttribute("aria-sort", next);
          order = next ? sorted(rows, j, numeric, next === "descending" ? -1 : 1) : rows;
          place(order);
        });
      });
    }
    if (rows.length > 8) {
      const search = make("input", { type: "search", placeholder: "search", "aria-label": `Search ${name}` });
      search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); place(order); });
      tools.append(search);
    }
    if (!everything) {
      const more = button(`Show all ${rows.length}`, () => {
        everything = !everything;
        more.textContent = everything ? `Show ${shown}` : `Show all ${rows.length}`;
        place(order);
      });
      tools.append(more);
    }
    tools.append(button("CSV", () => download(`${slug(name)}.csv`, "text/csv", csv(head, order.filter((row) => !row.matches(".group")).map((row) => [...row.cells]))),
      { "aria-label": `Download ${name} as CSV` }));
    if (rows.length > 8) scroll.before(tools); else scroll.after(tools);
    place(order);
  }

  function sorted(rows, column, numeric, sign) {
    const result = [];
    let block = [];
    const end = () => {
      const keyed = block.map((row) => [said(row.cells[column])[0], row]);
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
      const marks = figure.querySelector(":scope > script") ? held(figure) : [];
      if (marks.length) follow(svg, () => marks);
      figure.append(saver(svg, svg.getAttribute("aria-label").split(":")[0]));
    }
  }
  const saver = (svg, name) => make("div", { class: "tools" }, button("SVG",
    () => download(`${slug(name)}.svg`, "image/svg+xml", drawn(svg)), { "aria-label": `Download ${name} as SVG` }));

  // A reliability diagram of cells [bin, examples, mean of what was said, how often it happened], shares in millionths.
  const LEFT = 44, TOP = 8, SIDE = 280, GAP = 14, LOW = 48;
  const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
  const count = (n) => n.toLocaleString("en-US");

  function wilson(p, n, z) {
    const middle = p + z * z / (2 * n), half = z * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)), all_ = 1 + z * z / n;
    return [Math.max(0, (middle - half) / all_), Math.min(1, (middle + half) / all_)];
  }

  function diagram(label) {
    const svg = ink("svg", { viewBox: `0 0 ${LEFT + SIDE + 20} ${TOP + SIDE + GAP + LOW + 36}`, role: "img", class: "diagram", "aria-label": label });
    let marks = [];
    follow(svg, () => marks);
    return { svg, draw: (layers, words) => { marks = redraw(svg, layers, words); } };
  }

  function redraw(svg, layers, words) {
    const x = (share) => LEFT + SIDE * share, y = (share) => TOP + SIDE * (1 - share), floor = TOP + SIDE + GAP + LOW;
    const text = (content, at, more = {}) => ink("text", { x: at[0], y: at[1], "font-size": 10, fill: "currentColor", "text-anchor": "middle", ...more }, content);
    const line = (from, to, more = {}) => ink("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1], stroke: "var(--soft)", ...more });
    const parts = [
      ink("rect", { x: LEFT, y: TOP, width: SIDE, height: SIDE, fill: "none", stroke: "var(--line)" }),
      line([x(0), y(0)], [x(1), y(1)], { "stroke-dasharray": "4 3" }),
      line([LEFT, floor], [LEFT + SIDE, floor]),
      text(words.said, [LEFT + SIDE / 2, floor + 30]),
      text(words.happened, [0, 0], { transform: `translate(10 ${TOP + SIDE / 2}) rotate(-90)` }),
    ];
    for (const share of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
      parts.push(text(`${100 * share}%`, [x(share), floor + 14]), text(`${100 * share}%`, [LEFT - 5, y(share) + 3], { "text-anchor": "end" }));
    }
    const marks = [];
    layers.forEach(({ name, cells }, i) => {
      const color = i === layers.length - 1 ? "var(--blue)" : "var(--soft)", total = cells.reduce((sum, cell) => sum + cell[1], 0);
      const most = Math.max(...cells.map((cell) => cell[1]));
      const points = cells.map(([bin, n, c, a]) => ({ bin, n, c: c / 1e6, a: a / 1e6 }));
      parts.push(ink("polyline", { points: points.map(({ c, a }) => `${x(c)},${y(a)}`).join(" "), fill: "none", stroke: color, "stroke-width": 1.5 }));
      for (const { bin, n, c, a } of points) {
        let words_ = `${layers.length > 1 ? `${name}: ` : ""}${words.said} ${(100 * bin / words.bins).toFixed(0)} to ${(100 * (bin + 1) / words.bins).toFixed(0)} %: ${words.outcome} ${percent(a)}`;
        if (words.z) {
          const [low, high] = wilson(a, n, words.z);
          parts.push(line([x(c), y(low)], [x(c), y(high)], { stroke: color, "stroke-width": 1.2, opacity: 0.7 }));
          words_ += `, ${words.level} interval ${(100 * low).toFixed(1)} to ${percent(high)}`;
        }
        parts.push(ink("circle", { cx: x(c), cy: y(a), r: 2 + 3.5 * Math.sqrt(n / total), fill: color, opacity: i === layers.length - 1 ? 1 : 0.6 }));
        if (i === layers.length - 1) {
          const tall = LOW * n / most;
          parts.push(ink("rect", { x: x(bin / words.bins) + 0.5, y: floor - tall, width: SIDE / words.bins - 1, height: tall, fill: color }));
        }
        marks.push([x(c), y(a), `${words_}; said ${percent(c)}; ${count(n)} examples`]);
      }
    });
    svg.replaceChildren(...parts);
    return marks.sort((one, other) => one[0] - other[0]);
  }

  // Readings: a list of tiles whose texts change

  function readings(names) {
    const list = make("dl", { class: "tiles" });
    const cells = names.map((name) => {
      const large = make("span"), small = make("small");
      list.append(make("div", {}, make("dt", {}, name), make("dd", {}, large, small)));
      return [large, small];
    });
    const tell = (texts) => texts.forEach(([large, small], i) => {
      cells[i][0].textContent = large;
      cells[i][1].textContent = small || "";
    });
    return [list, tell];
  }

  const widgets = {
    // What a temperature turned by hand, or another calibrator, makes of the predictions
    temperature(place, { words, heading, note, steps, one, maps, tiles }) {
      const chart = diagram(`Reliability diagram, redrawn by the controls beside it`);
      const [list, tell] = readings(tiles);
      const choose = make("select");
      if (steps.length) choose.append(make("option", { value: "-1" }, "a temperature, by hand"));
      maps.forEach(({ name }, i) => choose.append(make("option", { value: i }, name)));
      const slider = make("input", { type: "range", min: 0, max: Math.max(0, steps.length - 1), step: 1, value: one });
      const shown = make("output");
      const before = steps.length ? steps[one] : maps[0];
      const update = () => {
        const by = Number(choose.value), found = by < 0 ? steps[slider.value] : maps[by];
        slider.disabled = by >= 0;
        shown.textContent = by < 0 ? found.name : "";
        slider.setAttribute("aria-valuetext", by < 0 ? found.name : "not used");
        tell(found.tiles);
        chart.draw(found === before ? [{ name: found.name, cells: found.cells }] : [{ name: "as they came", cells: before.cells }, { name: found.name, cells: found.cells }], words);
      };
      const go = (index) => () => { choose.value = "-1"; slider.value = index; update(); };
      const controls = make("div", { class: "controls" }, labeled("Calibrator", choose));
      if (steps.length) {
        controls.append(labeled("Temperature T", slider), shown);
        const stops = make("div", { class: "tools" });
        steps.forEach(({ stop }, i) => { if (stop) stops.append(button(stop, go(i))); });
        controls.append(stops);
      }
      choose.addEventListener("change", update);
      slider.addEventListener("input", update);
      place.append(make("h3", {}, heading), make("p", { class: "note" }, note),
        make("div", { class: "pair" }, make("figure", {}, chart.svg, saver(chart.svg, "Reliability diagram")), make("div", {}, controls, list)));
      update();
    },

    // Acting from a threshold on, and what that costs
    threshold(place, { heading, note, tables, base, words }) {
      const [list, tell] = readings(words.tiles);
      const choose = make("select");
      tables.forEach(({ name }, i) => choose.append(make("option", { value: i }, name)));
      const steps = tables[0].rows.map((row) => row[0]);
      const start = steps.findIndex((c) => c >= 0.9);
      const slider = make("input", { type: "range", min: 0, max: steps.length - 1, step: 1, value: start });
      const shown = make("output"), advice = make("p", { class: "note", role: "status" });
      const costs = words.costs.map((label, i) => [label, make("input", { type: "number", min: 0, step: "any", value: i ? 1 : 10 })]);
      const price = ([, share, precision, recall]) => {
        const [wrong, left] = costs.map(([, input]) => Math.max(0, Number(input.value) || 0));
        const acted = share ? share * (1 - precision) : 0;
        return wrong * acted + left * (base === null ? 1 - share : base * (1 - recall));
      };
      const update = () => {
        const rows = tables[Number(choose.value)].rows, row = rows[slider.value], [c, , , , acted, error, room] = row;
        const best = rows.reduce((least, other) => (price(other) < price(least) - 1e-12 ? other : least), rows[0]);
        const name = `${words.said} from ${percent(c, c > 0.99 && c < 1 ? 2 : 0)}`;
        shown.textContent = name;
        slider.setAttribute("aria-valuetext", name);
        tell([[acted, words.share], [error, room], [price(row).toFixed(4), words.each]]);
        advice.textContent = `${words.cheapest} ${percent(best[0], best[0] > 0.99 && best[0] < 1 ? 2 : 0)}: ${price(best).toFixed(4)} ${words.each}.`;
      };
      const controls = make("div", { class: "controls" }, ...(tables.length > 1 ? [labeled("Predictions", choose)] : []),
        labeled(words.slider, slider), shown, ...costs.map(([label, input]) => labeled(label, input)));
      [choose, slider, ...costs.map(([, input]) => input)].forEach((control) => control.addEventListener("input", update));
      place.append(make("h3", {}, heading), make("p", { class: "note" }, note), controls, list, advice);
      update();
    },

    // A class opens its curve and its most confident mistakes
    classes(place, { words, names, rows, head }) {
      const table = place.closest("section").querySelector("table"), width = table.tHead.rows[0].cells.length;
      [...table.tBodies[0].rows].slice(0, rows.length).forEach((row, i) => {
        const cell = row.cells[0], name = cell.textContent;
        const open = button(name, () => {
          const closed = open.getAttribute("aria-expanded") === "false";
          open.setAttribute("aria-expanded", String(closed));
          if (closed) row.after(detail(name, rows[i])); else row.nextElementSibling.remove();
        }, { class: "opens", "aria-expanded": "false" });
        cell.replaceChildren(open);
      });
      const detail = (name, { layers, mistakes }) => {
        const chart = diagram(`Reliability diagram of ${name}`);
        chart.draw(layers.map((cells, i) => ({ name: names[i], cells })), words);
        const list = make("table", {}, make("caption", {}, mistakes.length ? words.mistakes : words.none));
        if (mistakes.length) {
          list.append(make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
            make("tbody", {}, ...mistakes.map((cells) => make("tr", {}, ...cells.map((text) => make("td", {}, text))))));
        }
        const inside = make("div", { class: "pair" }, make("figure", {}, make("figcaption", {}, name), chart.svg, saver(chart.svg, name)), make("div", {}, list));
        return make("tr", { class: "detail" }, make("td", { colspan: width }, inside));
      };
    },
  };

  // The page as a whole

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

  function plainWords() {
    if (!document.querySelector(".plain")) return;
    const turn = button("In plain words", () => {
      const on = document.documentElement.classList.toggle("plainly");
      turn.setAttribute("aria-pressed", String(on));
    }, { class: "turn", "aria-pressed": "false" });
    document.querySelector("header").prepend(turn);
  }

  document.documentElement.classList.add("alive");
  contents();
  plainWords();
  figures();
  all(".long > .scroll, .scroll:not(.long *)").forEach(enrich);
  for (const place of all(".play")) {
    const found = held(place);
    place.hidden = false;
    widgets[place.dataset.kind](place, found);
  }
  terms();
  copies();
})();
