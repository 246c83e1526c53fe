// What a checker of accessibility would find: names, labels, one heading, an order of headings, ids of their own, and
// contrast of text by the rule of WCAG 2.2, AA. Answers a list of sentences.
(() => {
  const found = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const name = (element) => element.outerHTML.slice(0, 120);

  if (!document.documentElement.lang) found.push("the page has no language");
  if (!document.title) found.push("the page has no title");
  if (all("h1").length !== 1) found.push("the page must have one heading of the first level");
  if (all("main").length !== 1) found.push("the page must have one main part");
  let level = 0;
  for (const heading of all("main h1, main h2, main h3").filter(visible)) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) found.push(`a level of headings is left out: ${name(heading)}`);
    level = next;
  }
  const ids = all("[id]").map((element) => element.id);
  for (const id of new Set(ids)) {
    if (ids.filter((other) => other === id).length > 1) found.push(`an id is there twice: ${id}`);
  }

  const texts = (elements) => elements.map((one) => one?.textContent || "").join(" ").trim();
  const label = (element) =>
    element.getAttribute("aria-label") ||
    texts((element.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id))) ||
    texts([...(element.labels || [])]);
  for (const field of all("input:not([type=hidden]), select, textarea")) {
    if (!label(field)) found.push(`a field has no label: ${name(field)}`);
  }
  for (const control of all("a[href], button")) {
    if (!label(control) && !control.textContent.trim()) found.push(`a control has no name: ${name(control)}`);
  }
  for (const picture of all("svg")) {
    if (picture.getAttribute("role") === "img" ? !label(picture) : !picture.closest("[aria-hidden=true]")) {
      found.push(`a picture is neither named nor hidden: ${name(picture)}`);
    }
  }
  for (const part of all("[role=region], dialog, nav")) {
    if (!label(part)) found.push(`a part has no name: ${name(part)}`);
  }
  for (const cell of all("th")) {
    if (!cell.hasAttribute("scope")) found.push(`a heading of a table has no scope: ${name(cell)}`);
  }
  for (const area of all(".table")) {
    const scrolls = area.scrollWidth > area.clientWidth;
    if (scrolls && area.tabIndex < 0) found.push(`a part scrolls and has no focus: ${name(area)}`);
  }
  for (const list of all("ul, ol")) {
    const others = [...list.children].filter((child) => child.tagName !== "LI");
    if (others.length > 0) found.push(`a list has other children: ${name(list)}`);
  }

  // Contrast. Colours come from the browser as rgb() or color(srgb …).
  const read = (text) => {
    const numbers = (text.match(/[\d.]+(e-?\d+)?/g) || []).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return { rgb: numbers.slice(0, 3).map((n) => n * scale), alpha: numbers[3] ?? 1 };
  };
  const over = (top, below) => top.rgb.map((value, n) => value * top.alpha + below[n] * (1 - top.alpha));
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = read(getComputedStyle(at).backgroundColor);
      if (colour.alpha > 0) layers.push(colour);
      if (colour.alpha === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.nodeValue.trim() || seen.has(element) || !visible(element)) continue;
    seen.add(element);
    if (element.closest("svg, .hidden, .skip, [disabled]")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const [a, b] = [light(over(read(style.color), below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio >= (isLarge ? 3 : 4.5)) continue;
    const text = element.textContent.trim().slice(0, 40);
    found.push(`contrast ${ratio.toFixed(2)} of "${text}", ${style.color} on ${below.map(Math.round)}`);
  }
  return [...new Set(found)].slice(0, 20);
})();
