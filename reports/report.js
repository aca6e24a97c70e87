/* Draws the charts of the HTML report from the JSON block, and sorts and filters rows of tables that are there. Nothing
 * is computed here that a view does not say; tables and answers need none of this. */
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  /* A colour of the style sheet as the present scheme has it. */
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const css = (name) => { probe.style.color = "var(" + name + ")"; return getComputedStyle(probe).color; };
  const faint = (rgb, alpha) => rgb.replace(/^rgb\((.*)\)$/, "rgba($1, " + alpha + ")");
  const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3]];
  const runs = data.runs.map(([id, label, arm, armLabel, place], i) => (
    { id, label, arm, armLabel, place, i, name: id + " " + label }
  ));
  const armNames = [];
  for (const run of runs) armNames[run.arm] = run.armLabel;
  const runById = new Map(runs.map((run) => [run.id, run]));
  const color = (i) => css("--s" + (i % 8));
  const dash = (i) => dashes[Math.floor(i / 8) % dashes.length];
  const charts = new Map();
  const VISIBLE = 8; /* curves shown at first; the legend brings back the rest */
  const perArmVisible = Math.max(1, Math.floor(VISIBLE / armNames.length));
  const hidden = (run) => runs.length > VISIBLE && (run.place >= perArmVisible || run.arm >= VISIBLE);

  const si = (x) => {
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e9) return +(x / 1e9).toPrecision(3) + "G";
    if (size >= 1e6) return +(x / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return +(x / 1e3).toPrecision(3) + "k";
    if (size >= 1e-3) return String(+x.toPrecision(4));
    return x.toExponential(0);
  };
  const bytes = (x) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let i = 0;
    while (x >= 1024 && i < units.length - 1) { x /= 1024; i++; }
    return +x.toPrecision(3) + " " + units[i];
  };
  /* Distance of ticks on an axis of bytes: a power of two, about six of them. */
  const byteStep = (list) => Math.pow(2, Math.ceil(Math.log2(Math.max(6, ...list) / 6)));
  const percent = (x) => +(100 * x).toPrecision(5) + " %";

  function axis(title, more) {
    return Object.assign({
      title: { display: true, text: title, color: css("--soft") },
      grid: { color: css("--grid"), borderColor: css("--line") },
      ticks: { color: css("--soft"), maxRotation: 0, autoSkipPadding: 12 }
    }, more);
  }
  const ticks = (format, more) => Object.assign({
    color: css("--soft"), maxRotation: 0, autoSkipPadding: 14, callback: format
  }, more);
  /* Labels of a logarithmic axis: the powers of ten, and 2 and 5 when there are few. */
  function logTicks(format) {
    return ticks(function (value) { /* a function, for Chart.js passes the scale as this */
      const lead = value / Math.pow(10, Math.floor(Math.log10(value) + 1e-9));
      const decades = Math.log10(this.max / this.min);
      const wanted = decades > 3 ? [1] : [1, 2, 5];
      return wanted.some((w) => Math.abs(lead - w) < 1e-6) ? format(value) : "";
    }, { autoSkip: false });
  }

  /* The legend is made of buttons, which a keyboard reaches too. */
  function legend(chart, figure) {
    const old = figure.querySelector(".legend");
    if (old) old.remove();
    const sets = chart.data.datasets.map((set, i) => ({ set, i })).filter(({ set }) => set.label && !set.quiet);
    if (!sets.length) return;
    const box = document.createElement("div");
    box.className = "legend";
    for (const { set, i } of sets) {
      const item = document.createElement(sets.length > 1 ? "button" : "span");
      const swatch = document.createElement("i");
      swatch.style.color = set.borderColor || set.backgroundColor;
      if (set.borderDash && set.borderDash.length) swatch.className = "dashed";
      item.append(swatch, set.label);
      if (sets.length > 1) {
        item.type = "button";
        const show = () => item.setAttribute("aria-pressed", String(chart.isDatasetVisible(i)));
        item.addEventListener("click", () => {
          const on = !chart.isDatasetVisible(i);
          chart.data.datasets.forEach((other, k) => {
            if (k === i || (set.group && other.group === set.group)) chart.setDatasetVisibility(k, on);
          });
          chart.update();
          show();
        });
        show();
      }
      box.append(item);
    }
    figure.append(box);
  }

  function draw(id, config, height) {
    const canvas = byId(id);
    if (!canvas) return;
    const figure = byId("fig-" + id);
    if (charts.has(id)) charts.get(id).destroy();
    const points = config.data.datasets.reduce((n, d) => n + d.data.length, 0);
    figure.hidden = !points;
    if (!points) { charts.delete(id); return; }
    if (height) canvas.parentNode.style.height = height + "px";
    config.options = Object.assign({
      responsive: true, maintainAspectRatio: false, animation: false, interaction: { mode: "nearest", intersect: false }
    }, config.options);
    config.options.plugins = Object.assign({ legend: { display: false } }, config.options.plugins);
    charts.set(id, new Chart(canvas, config));
    legend(charts.get(id), figure);
  }

  /* Rows [run, x, y, ...] as one list of points per run. */
  function perRun(rows, point) {
    const lists = runs.map(() => []);
    for (const row of rows) lists[runById.get(row[0]).i].push(point(row));
    return runs.map((run, i) => ({ run, points: lists[i] })).filter((s) => s.points.length);
  }
  const line = (s, more) => Object.assign({
    label: s.run.name, data: s.points, borderColor: color(s.run.arm), backgroundColor: color(s.run.arm),
    borderDash: dashes[s.run.place % dashes.length], borderWidth: 2, pointRadius: 0, pointHitRadius: 8,
    hidden: hidden(s.run)
  }, more);

  /* Explorers: rows of a table to sort by a heading and to choose by the values of some columns. */
  const number = (cell) => (cell.dataset.v === undefined ? null : Number(cell.dataset.v));
  function compare(a, b, column) {
    const x = number(a.cells[column]), y = number(b.cells[column]);
    if (x === null && y === null) return a.cells[column].textContent.localeCompare(b.cells[column].textContent);
    if (x === null || y === null) return x === null ? 1 : -1;
    return x - y;
  }
  function explorer(table, changed) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const bar = document.createElement("div"), count = document.createElement("output"), chosen = new Map();
    bar.className = "filters choice";
    const show = () => {
      let n = 0;
      for (const row of rows) {
        row.hidden = [...chosen].some(([column, value]) => row.cells[column].textContent !== value);
        n += !row.hidden;
      }
      count.textContent = n + " of " + rows.length + " rows";
      if (changed) changed(rows.filter((row) => !row.hidden));
    };
    heads.forEach((head, column) => {
      const sort = document.createElement("button");
      sort.type = "button";
      sort.textContent = head.textContent;
      sort.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        rows.sort((a, b) => (down ? compare(b, a, column) : compare(a, b, column)));
        body.append(...rows);
      });
      head.textContent = "";
      head.append(sort);
      if (head.dataset.filter === undefined) return;
      const values = [...new Set(rows.map((row) => row.cells[column].textContent))];
      if (values.length < 2) return;
      const label = document.createElement("label"), select = document.createElement("select");
      select.append(new Option("all", ""), ...values.map((value) => new Option(value === "" ? "none" : value, "=" +
        value)));
      select.addEventListener("change", () => {
        if (select.value) chosen.set(column, select.value.slice(1)); else chosen.delete(column);
        show();
      });
      label.append(sort.textContent + " ", select);
      bar.append(label);
    });
    count.setAttribute("aria-live", "polite");
    bar.append(count);
    table.closest(".scroll").before(bar);
    show();
  }

  const kinds = [["prefill", "--prefill"], ["mixed", "--s3"], ["decode", "--decode"]];
  let shownSteps = [];
  function stepScatter() {
    const cell = (row, column) => Number(row.cells[column].dataset.v);
    draw("c-explore", {
      type: "scatter",
      data: { datasets: kinds.map(([kind, shade]) => ({
        label: kind, borderColor: css(shade), backgroundColor: faint(css(shade), 0.55), pointRadius: 3.5,
        data: shownSteps.filter((row) => row.cells[2].textContent === kind && cell(row, 5) > 0).map((row) => (
          { x: cell(row, 6), y: cell(row, 5), step: cell(row, 1), run: row.cells[0].textContent,
            graph: row.cells[3].textContent }))
      })) },
      options: {
        scales: {
          x: axis("token rows of the step", { type: "logarithmic", ticks: logTicks(si) }),
          y: axis("duration, ms", { type: "logarithmic", ticks: logTicks(si) })
        },
        plugins: { tooltip: { callbacks: { label: (c) => [
          c.raw.run + ", step " + c.raw.step + (c.raw.graph ? ", graph " + c.raw.graph : ""),
          si(c.raw.x) + " rows, " + si(c.raw.y) + " ms"
        ] } } }
      }
    });
  }

  function curve(id, rows, title) {
    const series = perRun(rows, ([, x, y]) => ({ x, y }));
    const values = rows.map((row) => row[1]);
    const wide = values.length && Math.max(...values) > 20 * Math.min(...values);
    draw(id, {
      type: "line",
      data: { datasets: series.map((s) => line(s, { stepped: "before" })) },
      options: {
        parsing: false,
        scales: {
          x: axis(title, { type: wide ? "logarithmic" : "linear", ticks: wide ? logTicks(si) : ticks(si) }),
          y: axis("share of requests", { min: 0, max: 1, ticks: ticks((v) => percent(v), { stepSize: 0.25 }) })
        },
        plugins: { tooltip: { callbacks: {
          title: () => "", label: (c) => c.dataset.label + ": " + percent(c.parsed.y) + " ≤ " + si(c.parsed.x) + " ms"
        } } }
      }
    });
  }

  function frontier() {
    const rows = data.frontier, sets = [];
    const point = (r) => ({ x: r[2], y: r[3], run: r[1], ttft: r[4], lanes: r[5], how: r[7] });
    for (const arm of [...new Set(rows.map((r) => r[0]))]) {
      const mine = rows.filter((r) => r[0] === arm), shade = color(arm);
      const at = data.frontier_at.filter((r) => r[0] === arm && r[2] !== null);
      const style = { borderColor: shade, backgroundColor: shade, pointRadius: 5, pointHoverRadius: 7, group: "arm " +
        arm };
      sets.push(Object.assign({ label: armNames[arm], data: mine.filter((r) => r[6]).map(point), showLine: true,
        borderWidth: 2, borderDash: dash(arm) }, style));
      sets.push(Object.assign({ label: armNames[arm] + ", beaten", quiet: true, data: mine.filter((r) =>
        !r[6]).map(point) },
        style, { backgroundColor: css("--panel"), borderWidth: 1.5 }));
      sets.push(Object.assign({ label: armNames[arm] + " at the floor", quiet: true, data: at.map((r) => (
        { x: r[1], y: r[2], ttft: r[4] })) }, style, { pointStyle: "crossRot", pointRadius: 7, borderWidth: 2 }));
    }
    const floors = [...new Set(data.frontier_at.map((r) => r[1]))].sort((a, b) => a - b);
    draw("c-frontier", {
      type: "scatter",
      data: { datasets: sets },
      options: {
        layout: { padding: { top: 6 } },
        scales: {
          x: axis("p90 interactivity, tok/s/user", { ticks: ticks(si), grace: "5%", suggestedMax: Math.max(0,
            ...floors) }),
          y: axis("total tok/s, cached input included", { ticks: ticks(si), grace: "10%", beginAtZero: true })
        },
        plugins: { tooltip: { callbacks: { label: (c) => [
          c.raw.run ? runById.get(c.raw.run).name + " (" + c.raw.how + ")" : c.dataset.label,
          si(c.raw.x) + " tok/s/user, " + si(c.raw.y) + " total tok/s",
          (c.raw.lanes ? c.raw.lanes + " lanes, " : "") + "TTFT p90 " + si(c.raw.ttft) + " ms"
        ] } } }
      },
      plugins: [marks(floors.map((x) => ({ x, text: "floor " + si(x) })))]
    }, 380);
  }

  function byBin(id, type, rows, pick, title, y, format) {
    const bins = [...new Map(rows.map((r) => [r[1], r[2]])).entries()].sort((a, b) => a[0] - b[0]);
    const at = new Map(bins.map(([bin], i) => [bin, i]));
    const lists = runs.map(() => bins.map(() => null));
    for (const row of rows) lists[runById.get(row[0]).i][at.get(row[1])] = pick(row);
    const series = runs.map((run, i) => ({ run, points: lists[i] })).filter((s) => s.points.some((v) => v !== null));
    draw(id, {
      type,
      data: {
        labels: bins.map(([, label]) => label),
        datasets: series.map((s) => line(s, { pointRadius: 3, spanGaps: true, borderWidth: type === "bar" ? 0 : 2 }))
      },
      options: {
        interaction: { mode: "index", intersect: false },
        scales: { x: axis(title), y },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + format(c.parsed.y) } } }
      }
    });
  }

  function quality() {
    const log = (title) => axis(title, { type: "logarithmic", ticks: logTicks((v) => v.toExponential(0)) });
    const share = (title, more) => axis(title, Object.assign({ ticks: ticks((v) => percent(v)) }, more));
    const turns = data.turn.map((r) => [r[0], r[1], String(r[1]), r[2]]);
    byBin("c-kl", "line", data.offset, (r) => positive(r[3]), "offset, positions", log("mean KL, nats"), small);
    byBin("c-top1", "line", data.offset, (r) => r[5], "offset, positions",
      share("top-1 agreement", { max: 1 }), percent);
    byBin("c-hist", "bar", data.histogram, (r) => r[4], "KL, nats: from",
      share("share of positions", { beginAtZero: true }), percent);
    byBin("c-turn", "line", turns, (r) => positive(r[3]), "turn", log("mean KL, nats"), small);
  }

  function cache() {
    const labels = data.cache.map((r) => runById.get(r[0]).name);
    const bar = (label, at, fill) => ({
      label, data: data.cache.map((r) => r[at]), backgroundColor: fill, borderRadius: 4, maxBarThickness: 34
    });
    const pair = (id, datasets, title, format, stepSize) => draw(id, {
      type: "bar",
      data: { labels, datasets },
      options: {
        indexAxis: "y", interaction: { mode: "index", intersect: false, axis: "y" },
        scales: {
          x: axis(title, { beginAtZero: true, ticks: ticks(format, { stepSize }) }),
          y: axis("", { title: { display: false } })
        },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + format(c.parsed.x) } } }
      }
    }, Math.max(240, 90 + 26 * labels.length));
    pair("c-hit", [bar("measured", 1, css("--s0")), bar("infinite cache", 2, css("--wait"))], "hit rate", percent);
    pair("c-peak", [bar("global KV in use", 3, css("--s1")), bar("stored windows", 4, css("--s2"))],
      "bytes, peak", bytes, byteStep(data.cache.flatMap((r) => [r[3], r[4]])));
  }

  /* One column of a run's steps over equal intervals; intervals without a step get `empty`. */
  function binned(run, column, empty) {
    const rows = data.steps.filter((r) => r[0] === run);
    if (!rows.length) return [];
    const first = rows[0], last = rows[rows.length - 1];
    const width = last[1] > first[1] ? (last[2] - first[2]) / (last[1] - first[1]) : 1;
    const list = Array.from({ length: data.bins }, (_, i) => ({ x: first[2] + (i - first[1]) * width, y: empty }));
    for (const row of rows) list[row[1]].y = row[column];
    return list;
  }
  function overTime(id, sets, y, format, stacked, stepSize) {
    const x = sets[0].data.map((point) => point.x);
    draw(id, {
      type: "line",
      data: { datasets: sets },
      options: {
        interaction: { mode: "index", intersect: false },
        scales: {
          x: axis("time, s", {
            type: "linear", min: x[0], max: x[x.length - 1], ticks: ticks(si, { includeBounds: false })
          }),
          y: axis(y, { stacked, beginAtZero: true, ticks: ticks(format, { stepSize }) })
        },
        plugins: { tooltip: { callbacks: {
          title: (c) => si(c[0].parsed.x) + " s", label: (c) => c.dataset.label + ": " + format(c.parsed.y)
        } } }
      }
    });
  }
  const area = (label, values, fill, more) => Object.assign({
    label, data: values, borderColor: fill, backgroundColor: faint(fill, 0.7), fill: "-1", borderWidth: 1,
      pointRadius: 0,
    pointHitRadius: 6
  }, more);
  function steps(run) {
    overTime("c-steps", [
      area("decode", binned(run, 5, 0), css("--decode"), { stack: "rows", fill: "origin" }),
      area("new prefill", binned(run, 3, 0), css("--prefill"), { stack: "rows" }),
      area("replayed", binned(run, 4, 0), css("--s3"), { stack: "rows" }),
      area("kept behind the cut", binned(run, 6, 0), css("--ink"), {
        stack: "kept", fill: false, borderWidth: 1.5, borderDash: [4, 3]
      })
    ], "rows/s", si, true);
  }
  function memory(run) {
    overTime("c-memory", [
      area("global KV in use", binned(run, 7, null), css("--s1"), { spanGaps: true, borderWidth: 2, fill: false }),
      area("stored windows", binned(run, 8, null), css("--s2"), { spanGaps: true, borderWidth: 2, fill: false })
    ], "bytes", bytes, false, byteStep(data.steps.filter((r) => r[0] === run).flatMap((r) => [r[7], r[8]])));
  }

  /* --- timeline: SVG, since bars need tooltips and must print well --- */
  function svg(name, attributes, parent) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  }
  function niceStep(span, count) {
    const raw = span / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
    return power * [1, 2, 5, 10].find((m) => m * power >= raw);
  }
  function timeline(run) {
    const plot = byId("timeline-plot");
    plot.textContent = "";
    const time = (t) => (t < 0 ? null : t); /* -1: it never came to that */
    const rows = data.timeline.filter((r) => r[0] === run).map((r) => ({
      lane: r[1], stream: r[2], turn: r[3], arrival: r[4], admit: time(r[5]), first: time(r[6]), last: time(r[7]),
      trace: r[8], isl: r[9], osl: r[10], hit: r[11], replayed: r[12], error: r[13], phase: r[14]
    }));
    if (!rows.length) { plot.textContent = "This run has no requests."; return; }
    for (const r of rows) r.end = Math.max(r.arrival, r.admit || 0, r.first || 0, r.last || 0);
    const lanes = [...new Set(rows.map((r) => r.lane))].sort((a, b) => a - b);
    const t0 = Math.min(...rows.map((r) => r.arrival)), t1 = Math.max(...rows.map((r) => r.end), t0 + 1e-6);
    const W = 1120, left = 54, right = 10, bar = 9, gap = 2, pad = 4;
    const x = (t) => left + (t - t0) / (t1 - t0) * (W - left - right);
    let y = 6;
    const root = svg("svg", { role: "presentation" });
    const grid = svg("g", {}, root), bars = svg("g", {}, root);
    for (const lane of lanes) {
      const mine = rows.filter((r) => r.lane === lane), ends = [];
      for (const r of mine) { /* the first sub-row that is free */
        let k = ends.findIndex((end) => end <= r.arrival);
        if (k < 0) k = ends.push(0) - 1;
        ends[k] = r.end;
        r.y = y + pad + k * (bar + gap);
      }
      const height = 2 * pad + ends.length * (bar + gap) - gap;
      svg("rect", { x: left, y, width: W - left - right, height, class: "lane", rx: 3 }, bars);
      svg("text", { x: left - 8, y: y + height / 2 + 4, "text-anchor": "end" }, bars).textContent = "lane " + lane;
      for (const r of mine) {
        const g = svg("g", {}, bars);
        const piece = (from, to, kind) => {
          if (from === null || to === null || to < from) return;
          const width = Math.max(0.6, x(to) - x(from)).toFixed(2);
          svg("rect", { x: x(from).toFixed(2), y: r.y, width, height: bar, class: kind, rx: 1.5 }, g);
        };
        if (r.error) {
          piece(r.arrival, r.end, "error");
        } else {
          piece(r.arrival, r.admit, "wait");
          piece(r.admit, r.first, "prefill");
          piece(r.first, r.last, "decode");
        }
        const about = [
          r.trace + ", stream " + r.stream + ", turn " + r.turn + (r.phase === "profiling" ? "" : " (" + r.phase + ")"),
          r.isl + " tokens in (" + r.hit + " from cache, " + r.replayed + " replayed), " + r.osl + " out"
        ];
        if (r.first !== null) about.push("TTFT " + si((r.first - r.arrival) * 1e3) + " ms");
        if (r.error) about.push(r.error);
        svg("title", {}, g).textContent = about.join("\n");
      }
      y += height + 4;
    }
    const step = niceStep(t1 - t0, 8);
    for (let t = Math.ceil(t0 / step) * step; t <= t1; t += step) {
      svg("line", { x1: x(t), x2: x(t), y1: 4, y2: y }, grid);
      svg("text", { x: x(t), y: y + 13, "text-anchor": "middle" }, grid).textContent = si(+t.toPrecision(12)) + " s";
    }
    root.setAttribute("viewBox", "0 0 " + W + " " + (y + 20));
    plot.appendChild(root);
  }

  /* --- audits: arms are named audit.arm --- */
  const arms = data.arms.map(([audit, arm, label, control], i) => ({
    id: audit + "." + arm, audit, i, control, name: (data.audits.length > 1 ? audit + "." : "") + arm + " " + label
  }));
  const armById = new Map(arms.map((arm) => [arm.id, arm]));
  const armLine = (arm, points, more) => Object.assign({
    label: arm.name, data: points, borderColor: color(arm.i), backgroundColor: color(arm.i), borderDash: dash(arm.i),
    borderWidth: 2, pointRadius: 0, pointHitRadius: 8
  }, more);
  function perArm(rows, audit, point) {
    const lists = new Map();
    for (const row of rows) {
      if (row[0] !== audit) continue;
      const id = row[0] + "." + row[1];
      if (!lists.has(id)) lists.set(id, []);
      lists.get(id).push(point(row));
    }
    return arms.filter((arm) => lists.has(arm.id)).map((arm) => ({ arm, points: lists.get(arm.id) }));
  }
  const positive = (x) => (x > 0 ? x : null); /* zero has no place on a logarithmic axis; the table shows it */
  const small = (x) => (x === 0 ? "0" : x.toExponential(2));
  const nats = (title) => axis(title, { type: "logarithmic", ticks: logTicks((v) => v.toExponential(0)) });

  /* Vertical lines with a word at the top. */
  const marks = (list) => ({
    id: "marks",
    afterDatasetsDraw(chart) {
      const { ctx, chartArea: area, scales: { x } } = chart;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css("--soft");
      ctx.setLineDash([3, 3]);
      ctx.font = "11px " + Chart.defaults.font.family;
      let last = -1e9, row = 0;
      for (const mark of list) {
        const at = x.getPixelForValue(mark.x);
        if (at < area.left - 1 || at > area.right + 1) continue;
        row = at - last < 46 ? row + 1 : 0;
        last = at;
        ctx.beginPath();
        ctx.moveTo(at, area.top);
        ctx.lineTo(at, area.bottom);
        ctx.stroke();
        ctx.fillText(mark.text, Math.min(at + 3, area.right - 44), area.top + 10 + 12 * (row % 4));
      }
      ctx.restore();
    }
  });

  function profile(arm) {
    const rows = perArm(data.profile, arm.audit, (r) => ({ x: (r[2] + r[3]) / 2, y: positive(r[4]), n: r[6] }))
      .filter((s) => s.points.some((p) => p.y !== null));
    const fronts = data.fronts.filter((f) => f[0] + "." + f[1] === arm.id)
      .map((f) => ({ x: f[3], text: "L" + f[2] + (f[4] ? "" : "?") })).sort((a, b) => a.x - b.x);
    draw("c-profile", {
      type: "line",
      data: { datasets: rows.map((s) => armLine(s.arm, s.points, {
        hidden: s.arm.id !== arm.id && s.arm.control !== "", borderWidth: s.arm.id === arm.id ? 2.5 : 1.2
      })) },
      options: {
        parsing: false,
        scales: { x: axis("offset, positions", { type: "linear", ticks: ticks(si) }), y: nats("mean KL, nats") },
        plugins: { tooltip: { callbacks: {
          title: (c) => "offset " + si(c[0].parsed.x),
          label: (c) => c.dataset.label + ": " + small(c.parsed.y) + ", n = " + c.raw.n
        } } }
      },
      plugins: [marks(fronts)]
    });
  }

  function auditCharts(audit) {
    const facts = data.audits.find((a) => a[0] === audit);
    const turn = perArm(data.audit_turn, audit, (r) => ({ x: r[2], y: positive(r[3]) }));
    draw("c-audit-turn", {
      type: "line",
      data: { datasets: turn.filter((s) => s.points.some((p) => p.y !== null)).map((s) => armLine(s.arm, s.points, {
        pointRadius: 3, hidden: s.arm.control !== ""
      })) },
      options: {
        scales: { x: axis("turn", { type: "linear", ticks: ticks(si, { stepSize: 1 }) }), y: nats("mean KL, nats") },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + small(c.parsed.y) } } }
      }
    });
    const length = data.length.filter((r) => r[0] === audit).map((r) => ({ x: r[2], y: positive(r[3]) }));
    draw("c-length", {
      type: "line",
      data: { datasets: length.length > 1 ? [{
        label: "encoder replay of R rows", data: length, borderColor: css("--s1"), backgroundColor: css("--s1"),
        pointRadius: 4, borderWidth: 2
      }] : [] },
      options: {
        scales: {
          x: axis("R, rows", { type: "linear", ticks: ticks(si), suggestedMax: facts[3] }),
          y: nats("mean KL, nats")
        },
        plugins: { tooltip: { callbacks: { label: (c) => "R = " + c.parsed.x + ": " + small(c.parsed.y) } } }
      },
      plugins: [marks([{ x: facts[2], text: "window" }, { x: facts[3], text: "halo" }])]
    });
    const saves = data.saves.filter((r) => r[0] === audit);
    const names = saves.map((r) => armById.get(r[0] + "." + r[1]).name);
    const bars = (id, datasets, title, format, stepSize) => draw(id, {
      type: "bar",
      data: { labels: names, datasets },
      options: {
        indexAxis: "y", interaction: { mode: "index", intersect: false, axis: "y" },
        scales: { x: axis(title, { beginAtZero: true, ticks: ticks(format, { stepSize }) }), y: axis("", { title: {
          display: false } }) },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + format(c.parsed.x) } } }
      }
    }, Math.max(240, 90 + 24 * names.length));
    const bar = (label, at, fill) => ({
      label, data: saves.map((r) => r[at]), backgroundColor: fill, borderRadius: 4, maxBarThickness: 20
    });
    bars("c-work", [bar("work", 2, css("--s0"))], "share of all layers on all prompt tokens", percent);
    bars("c-windows", [bar("windows stored", 3, css("--s2")), bar("global KV added", 4, css("--s1"))], "bytes", bytes,
      byteStep(saves.flatMap((r) => [r[3], r[4]])));
  }

  function contamination(arm) {
    const plot = byId("map-plot");
    plot.textContent = "";
    const rows = data.map.filter((r) => r[0] + "." + r[1] === arm.id);
    byId("fig-map").hidden = !rows.length;
    if (!rows.length) return;
    const layers = [...new Set(rows.map((r) => r[2]))].sort((a, b) => a - b);
    const W = 1120, left = 80, cell = (W - left - 10) / 60, high = 26;
    const root = svg("svg", { role: "presentation", viewBox: "0 0 " + W + " " + (layers.length * high + 30) });
    layers.forEach((layer, i) => {
      svg("text", { x: left - 8, y: i * high + 17, "text-anchor": "end" }, root).textContent = "source " + layer;
      svg("rect", { x: left, y: i * high + 2, width: 60 * cell, height: high - 4, class: "lane", rx: 3 }, root);
    });
    for (const r of rows) {
      const rect = svg("rect", {
        x: (left + r[3] * cell).toFixed(1), y: layers.indexOf(r[2]) * high + 2, width: (cell - 0.6).toFixed(1),
        height: high - 4, class: r[6] > 0 ? "dirty" : "clean",
        "fill-opacity": (r[6] > 0 ? 0.15 + 0.85 * r[6] : 1).toFixed(3)
      }, root);
      svg("title", {}, rect).textContent = "source " + r[2] + ", positions " + r[4] + " to " + r[5] + ": " +
        percent(r[6]) + " of the bytes differ, " + r[7] + " rows";
    }
    svg("text", { x: left, y: layers.length * high + 18 }, root).textContent = "position 0";
    svg("text", { x: W - 10, y: layers.length * high + 18, "text-anchor": "end" }, root).textContent =
      "end of the longest document";
    plot.appendChild(root);
  }

  function pickArm() {
    const arm = byId("pick-arm") && armById.get(byId("pick-arm").value);
    if (!arm) return;
    profile(arm);
    contamination(arm);
    auditCharts(arm.audit);
  }

  /* --- ladders and claims --- */
  const lineOf = (label, shade, points, more) => Object.assign({
    label, data: points, borderColor: shade, backgroundColor: shade, borderWidth: 2, pointRadius: 3, showLine: true
  }, more);
  function ladder(id) {
    const rows = data.figures.filter((r) => r[0] === id), names = new Map(rows.map((r) => [r[1], r[1] + " " + r[2]]));
    const rungs = [...names.keys()].sort((a, b) => a - b);
    draw("c-ladder-" + id, {
      type: "scatter",
      data: { datasets: rungs.map((rung, i) => lineOf(names.get(rung), color(i), rows.filter((r) => r[1] === rung &&
        r[3] === "ttft").map((r) => ({ x: r[4], y: r[5], lo: r[6], hi: r[7] })), { borderDash: dash(i) })) },
      options: {
        scales: {
          x: axis("prompt, tokens", { type: "logarithmic", ticks: logTicks(si) }),
          y: axis("TTFT, ms", { type: "logarithmic", ticks: logTicks(si) })
        },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + si(c.raw.y) + " ms" +
          (c.raw.lo === null ? "" : " (" + si(c.raw.lo) + " to " + si(c.raw.hi) + ")") + " at " + si(c.raw.x) } } }
      }
    }, 340);
    const longest = Math.max(...rows.filter((r) => r[3] === "ttft").map((r) => r[4]));
    const bars = [["throughput at the floor", "tok_s_gpu_at_floor", 0, "--s0"], ["ITL", "itl", 0, "--s1"],
      ["TTFT at " + si(longest) + " tokens", "ttft", longest, "--s2"]];
    const later = rungs.slice(1);
    const of = (rung, metric, context) => rows.find((r) => r[1] === rung && r[3] === metric && r[4] === context);
    draw("c-factors-" + id, {
      type: "bar",
      data: {
        labels: later.map((rung) => names.get(rung)),
        datasets: bars.map(([label, metric, context, shade]) => ({
          label, backgroundColor: css(shade), borderRadius: 3, maxBarThickness: 14,
          data: later.map((rung) => { const r = of(rung, metric, context); return r ? r[9] : null; })
        })).filter((set) => set.data.some((x) => x !== null))
      },
      options: {
        indexAxis: "y", interaction: { mode: "index", intersect: false, axis: "y" },
        scales: {
          x: axis("times better than the rung before", { beginAtZero: true, ticks: ticks((v) => si(v) + "x") }),
          y: axis("", { title: { display: false } })
        },
        plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + si(c.parsed.x) + "x" } } }
      },
      plugins: [marks([{ x: 1, text: "" }])]
    }, Math.max(340, 80 + 52 * later.length));
  }

  /* Intervals as bars behind the points. */
  const intervals = (rows) => ({
    id: "intervals",
    beforeDatasetsDraw({ ctx, scales: { x, y } }) {
      ctx.save();
      ctx.strokeStyle = css("--soft");
      ctx.lineWidth = 2;
      rows.forEach((r, i) => {
        if (r[4] === null) return;
        ctx.beginPath();
        ctx.moveTo(x.getPixelForValue(r[4]), y.getPixelForValue(i));
        ctx.lineTo(x.getPixelForValue(r[5]), y.getPixelForValue(i));
        ctx.stroke();
      });
      ctx.restore();
    }
  });
  function claims() {
    const rows = data.claims, narrow = document.body.clientWidth < 640;
    const name = (r) => (r[0] + " " + r[1] + (narrow || !r[2] ? "" : ", " + r[2]))
      .replace(narrow ? /^(.{14}).+/ : /^(.{55}).+/, "$1\u2026");
    const verdicts = [["reproduced", "--good", "circle"], ["undecided", "--warn", "triangle"],
      ["not reproduced", "--bad", "rect"]];
    draw("c-claims", {
      type: "scatter",
      data: { datasets: verdicts.map(([verdict, shade, pointStyle]) => ({
        label: verdict, borderColor: css(shade), backgroundColor: css(shade), pointRadius: 5, pointStyle,
        data: rows.map((r, i) => ({ x: r[3], y: i, claim: r[0] })).filter((p) => rows[p.y][7] === verdict)
      })).filter((set) => set.data.length) },
      options: {
        scales: {
          x: axis("ours over published", { type: "logarithmic", ticks: logTicks(si), suggestedMin: 0.5, suggestedMax:
            2 }),
          y: axis("", { title: { display: false }, type: "linear", reverse: true, min: -1, max: rows.length,
            ticks: ticks((v) => (Number.isInteger(v) && rows[v] ? name(rows[v]) : ""), { stepSize: 1, autoSkip: false
              }) })
        },
        plugins: { tooltip: { callbacks: { label: (c) => {
          const r = rows[c.raw.y];
          return ["claim " + r[0] + ": " + r[1], r[2], "published " + si(r[8]) + " " + r[10] + ", ours " + si(r[9]) +
            " (" + r[6] + "), " + r[7]];
        } } } }
      },
      plugins: [intervals(rows), marks([{ x: 1, text: "as published" }])]
    }, 90 + 20 * rows.length);
  }

  function sensitivity() {
    const rows = data.sensitivity;
    draw("c-sensitivity", {
      type: "bar",
      data: {
        labels: rows.map((r) => r[0]),
        datasets: [{
          label: "ours, least to most of low, assumed and high", data: rows.map((r) => [Math.min(r[3], r[4], r[6]),
            Math.max(r[3], r[4], r[6])]), backgroundColor: css("--s1"),
          borderRadius: 3, maxBarThickness: 18
        }]
      },
      options: {
        indexAxis: "y",
        scales: {
          x: axis(rows.length ? "ours, " + rows[0][7] : "", { ticks: ticks(si), suggestedMin: 0, suggestedMax:
            rows.length ?
            rows[0][5] * 1.1 : 1 }),
          y: axis("", { title: { display: false } })
        },
        plugins: { tooltip: { callbacks: { label: (c) => {
          const r = rows[c.dataIndex];
          return [si(r[1]) + ": " + si(r[3]), "as assumed: " + si(r[6]), si(r[2]) + ": " + si(r[4])];
        } } } }
      },
      plugins: [marks(rows.length ? [{ x: rows[0][6], text: "ours" }, { x: rows[0][5], text: "published" }] : [])]
    }, 120 + 30 * rows.length);
  }

  /* One figure per source, hardware and metric whose claims differ in concurrency alone. */
  function claimPoints() {
    const place = byId("points"), groups = new Map();
    for (const r of data.claim_points) {
      const key = r[2] + ", " + r[4] + ": " + r[3] + ", " + r[1] + ", " + r[0];
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(r);
    }
    [...groups].forEach(([key, rows], i) => {
      const id = "c-points-" + i, [, , metric, , unit, along] = rows[0];
      if (!byId(id)) {
        const figure = document.createElement("figure"), box = document.createElement("div");
        const caption = document.createElement("figcaption"), canvas = document.createElement("canvas");
        figure.id = "fig-" + id;
        canvas.id = id;
        box.className = "chart";
        caption.append(Object.assign(document.createElement("b"), { textContent: key }));
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", key +
          ", published and ours by concurrency; the numbers are in the table below.");
        box.append(canvas);
        figure.append(caption, box);
        place.append(figure);
      }
      const tested = rows.filter((r) => r[8] !== null);
      draw(id, {
        type: "scatter",
        data: { datasets: [
          lineOf("published", css("--soft"), rows.map((r) => ({ x: r[6], y: r[7] })), { borderDash: [6, 3] }),
          lineOf("ours, " + tested[0][11], css("--s0"), tested.map((r) => ({ x: r[6], y: r[8], lo: r[9], hi: r[10] })))
        ] },
        options: {
          scales: {
            x: axis(along, { type: "logarithmic", ticks: logTicks(si) }),
            y: axis(metric + ", " + unit, { beginAtZero: true, ticks: ticks(si) })
          },
          plugins: { tooltip: { callbacks: { label: (c) => c.dataset.label + ": " + si(c.raw.y) + (c.raw.lo ===
            undefined ||
            c.raw.lo === null ? "" : " (" + si(c.raw.lo) + " to " + si(c.raw.hi) + ")") + " at " + c.raw.x } } }
        }
      });
    });
  }

  const choices = { "pick-timeline": timeline, "pick-steps": steps, "pick-memory": memory };
  function drawAll() {
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    for (const dot of document.querySelectorAll(".dot")) {
      const run = runById.get(Number(dot.dataset.run));
      if (run) dot.style.background = color(run.arm);
    }
    curve("c-ttft", data.ttft, "TTFT, ms");
    curve("c-itl", data.itl, "ITL, ms");
    curve("c-e2e", data.e2e, "time from arrival to last token, ms");
    frontier();
    quality();
    cache();
    pickArm();
    stepScatter();
    for (const [id] of data.ladders) ladder(id);
    claims();
    sensitivity();
    claimPoints();
    for (const id in choices) if (byId(id) && byId(id).value) choices[id](Number(byId(id).value));
  }

  /* --- light and dark: the system's, until the button says otherwise --- */
  const root = document.documentElement, system = window.matchMedia("(prefers-color-scheme: dark)");
  const store = { /* pages opened from a file may have no storage */
    get() { try { return localStorage.getItem("cedar-theme"); } catch (e) { return null; } },
    set(theme) { try { localStorage.setItem("cedar-theme", theme); } catch (e) { /* it lasts as long as the page */ } }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const button = byId("theme");
  function scheme(theme) {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to " + (isDark() ? "light" : "dark") + " colours");
    drawAll();
  }
  button.hidden = false;
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    store.set(theme);
    scheme(theme);
  });
  system.addEventListener("change", () => scheme(root.dataset.theme));

  for (const id in choices) {
    if (byId(id)) byId(id).addEventListener("change", (e) => choices[id](Number(e.target.value)));
  }
  if (byId("pick-arm")) byId("pick-arm").addEventListener("change", pickArm);
  for (const table of document.querySelectorAll("table.explore")) {
    explorer(table, table.id === "t-step_rows" ? (rows) => { shownSteps = rows; stepScatter(); } : null);
  }
  let before = "";
  window.addEventListener("beforeprint", () => { before = root.dataset.theme || ""; scheme("light"); });
  window.addEventListener("afterprint", () => scheme(before));
  const stored = store.get();
  scheme(stored === "dark" || stored === "light" ? stored : "");
})();
