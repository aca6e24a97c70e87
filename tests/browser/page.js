/* Functions that the browser test calls inside the page. They look, and change nothing. */
window.look = {
  /* Every chart: what it draws, and how many pixels it has drawn. */
  charts() {
    return [...document.querySelectorAll("canvas")].map((canvas) => {
      const chart = Chart.getChart(canvas), hidden = Boolean(canvas.closest("[hidden]"));
      let drawn = 0;
      if (!hidden && canvas.width && canvas.height) {
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 3; i < pixels.length; i += 4) drawn += pixels[i] > 0;
      }
      return { id: canvas.id, hidden, drawn, label: canvas.getAttribute("aria-label") || "",
        labels: chart ? chart.data.labels : [],
        sets: chart ? chart.data.datasets.map((set) => ({ label: set.label, data: set.data })) : [] };
    });
  },
  /* Rows of a table as shown, as text. */
  table(id) {
    const table = document.getElementById(id);
    return table && [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  },
  answers() {
    return [...document.querySelectorAll("#answers article")].flatMap((article) =>
      [...article.querySelectorAll("li")].map(
      (item) => [article.querySelector("h3").textContent, item.querySelector("span").textContent]));
  },
  /* Charts follow a new width in the frames after it. */
  async settled() {
    for (let i = 0; i < 40 && look.overflow().length; i++) await new Promise((done) => setTimeout(done, 50));
  },
  /* Elements that reach beyond the page's width, but for what lies in a box that scrolls by itself. */
  overflow() {
    const width = document.documentElement.clientWidth, found = [];
    if (document.documentElement.scrollWidth > width) found.push("the page is " + document.documentElement.scrollWidth
      + " wide");
    for (const node of document.body.querySelectorAll("*")) {
      const box = node.getBoundingClientRect();
      if (!box.width || box.right <= width + 0.5) continue;
      let inside = false;
      for (let up = node.parentElement; up && !inside; up = up.parentElement) {
        inside = ["auto", "scroll", "hidden"].includes(getComputedStyle(up).overflowX) && up !== document.body;
      }
      if (!inside) found.push(node.tagName + "." + node.className + " ends at " + Math.round(box.right));
    }
    return found.slice(0, 5);
  },
  rgba(text) {
    const parts = text.match(/[\d.]+/g).map(Number);
    return parts.length < 4 ? [...parts, 1] : parts;
  },
  over(top, below) { return [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1); },
  behind(node) {
    const layers = [];
    for (let up = node; up; up = up.parentElement) {
      const colour = look.rgba(getComputedStyle(up).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reduceRight((below, top) => look.over(top, below), [255, 255, 255, 1]);
  },
  ratio(a, b) {
    const light = (c) => {
      const [r, g, b] = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : Math.pow((v / 255 + 0.055) /
        1.055, 2.4)));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  },
  /* Texts with too little contrast, those that charts draw included. */
  contrast(least) {
    const found = new Set();
    let texts = 0;
    const test = (colour, node, what) => {
      const back = look.behind(node), ratio = look.ratio(look.over(look.rgba(colour), back), back);
      texts++;
      if (ratio < least) found.add(ratio.toFixed(2) + ": " + what.trim().slice(0, 40));
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text; (text = walker.nextNode());) {
      const node = text.parentElement;
      if (!text.data.trim() || !node.getClientRects().length || ["SCRIPT", "STYLE", "OPTION",
        "TITLE"].includes(node.tagName.toUpperCase())) continue;
      const style = getComputedStyle(node), svg = node instanceof SVGElement;
      test(svg ? style.fill : style.color, svg ? node.closest("figure") : node, text.data);
    }
    for (const canvas of document.querySelectorAll("canvas")) {
      const chart = Chart.getChart(canvas);
      if (!chart || canvas.closest("[hidden]")) continue;
      for (const { options } of Object.values(chart.scales)) {
        test(options.ticks.color, canvas, canvas.id + " ticks");
        if (options.title.display) test(options.title.color, canvas, canvas.id + " title");
      }
    }
    return { texts, found: [...found].slice(0, 8) };
  },
  /* What a keyboard must reach, in document order. */
  stops() {
    return [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex]")].filter((node) =>
      node.getClientRects().length && node.checkVisibility() && !node.disabled);
  },
  focus() {
    const node = document.activeElement, style = getComputedStyle(node);
    return { at: look.stops().indexOf(node), body: node === document.body,
      seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
      what: node.tagName + " " + (node.id || node.textContent.trim().slice(0, 30)) };
  },
  names() { /* stops that have no name for a screen reader, and canvases without one */
    const named = (node) => node.getAttribute("aria-label") || node.textContent.trim() || (node.labels &&
      node.labels.length) ||
      node.getAttribute("aria-labelledby");
    return [...look.stops(), ...document.querySelectorAll("canvas")].filter((node) => !named(node)).map((node) =>
      node.outerHTML.slice(0, 80));
  }
};
