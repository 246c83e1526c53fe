// Keeps the page up to date and sends the calls of operators. Everything that is shown was written by the server, or is
// set as text; nothing here builds HTML from data.

const root = document.documentElement;
const base = root.dataset.root || "./";
const $ = (selector, of = document) => of.querySelector(selector);
const all = (selector, of = document) => [...of.querySelectorAll(selector)];

// ---- Updates ----

/** Makes `old` like `next`, and leaves every node that is the same, so that focus and scroll positions stay. */
function morph(old, next) {
  if (old.nodeType !== next.nodeType || old.nodeName !== next.nodeName) {
    old.replaceWith(next);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  // An open dialog is a matter between the browser and its user; the server does not know of it.
  const gone = [...old.attributes].filter(({ name }) => name !== "open" && !next.hasAttribute(name));
  for (const { name } of gone) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morphChildren(old, next);
}

function morphChildren(old, next) {
  const [was, is] = [[...old.childNodes], [...next.childNodes]];
  is.forEach((node, n) => (n < was.length ? morph(was[n], node) : old.append(node)));
  was.slice(is.length).forEach((node) => node.remove());
}

/** Parts come as HTML of our own server, and are read in a document without scripts. */
function apply(parts) {
  for (const [id, html] of Object.entries(parts)) {
    const place = document.getElementById(id);
    if (!place || !place.hasAttribute("data-live")) continue;
    const read = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html");
    const content = document.importNode(read.body.firstElementChild, true);
    morphChildren(place, content);
  }
  root.dataset.updates = String(Number(root.dataset.updates || 0) + 1);
}

let source = null;
let retry = 0;

function connection(state, text) {
  const place = $("[data-connection]");
  if (!place) return;
  place.dataset.state = state;
  $("[data-connection-text]").textContent = text;
}

function listen() {
  if (source || document.hidden || !$("[data-live]")) return;
  clearTimeout(retry);
  source = new EventSource(location.href.split("#")[0]);
  source.onopen = () => connection("live", "Live");
  source.addEventListener("parts", (event) => {
    connection("live", "Live");
    apply(JSON.parse(event.data));
  });
  source.addEventListener("gone", () => {
    silence();
    connection("gone", "Gone");
  });
  source.onerror = () => {
    connection("lost", "Reconnecting");
    // A server that refuses ends the stream for good; it is asked again now and then.
    if (source && source.readyState === EventSource.CLOSED) {
      silence();
      retry = setTimeout(listen, 3000);
      askAgain();
    }
  };
}

// A session that has ended is not continued: the page asks for a token.
async function askAgain() {
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (answer.status === 401) location.reload();
  } catch {
    // The server does not answer, and is asked again.
  }
}

function silence() {
  if (source) source.close();
  source = null;
}

// A page that no one looks at costs the server nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    silence();
    connection("paused", "Paused");
  } else listen();
});
addEventListener("pagehide", silence);
addEventListener("pageshow", listen);

// ---- Calls ----

function toast(text, kind = "ok") {
  const place = $("[data-toasts]");
  const item = document.createElement("p");
  item.className = `toast ${kind}`;
  item.textContent = text;
  place.append(item);
  setTimeout(() => item.remove(), 8000);
}

/** A call of the HTTP API. Fails with the detail of its problem. */
async function call(method, address, body) {
  const options = { method, headers: { accept: "application/json" }, cache: "no-store" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer.");
  }
  const text = await answer.text();
  const said = text ? JSON.parse(text) : {};
  if (!answer.ok) throw new Error(said.detail || said.title || `Status ${answer.status}`);
  return said;
}

/** Puts a value at a path, as `messages.0.key`. */
function put(body, path, value) {
  const parts = path.split(".");
  let at = body;
  parts.forEach((part, n) => {
    if (n === parts.length - 1) at[part] = value;
    else at = at[part] ??= /^\d+$/.test(parts[n + 1]) ? [] : {};
  });
}

/** A word for a shell. */
function shell(word) {
  return /^[\p{L}\p{N}_./:=,@%+][\p{L}\p{N}_./:=,@%+-]*$/u.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Options with the values of fields in them. A part in brackets is left out where the value is empty. */
function options(template, value) {
  const fill = (text) => text.replace(/\{(\??)([\w.]+)\}/g, (_, flag, name) => (flag ? "" : shell(value(name))));
  return template.replace(/\[([^\]]*)\]|([^[]+)/g, (_, optional, plain) => {
    if (plain !== undefined) return fill(plain);
    const name = /\{\??([\w.]+)\}/.exec(optional)?.[1];
    return name && value(name) ? fill(optional) : "";
  });
}

const SENT = {
  text: (text) => text || undefined,
  number: (text) => (text === "" ? undefined : Number(text)),
  json: (text) => {
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new Error(`The body must be JSON: ${error.message}`);
    }
  },
  flag: (text) => (text ? true : undefined),
  place: (text) => {
    const place = text.trim();
    if (place === "beginning" || place === "end") return place;
    return /^\d+$/.test(place) ? { seq: Number(place) } : { time: place };
  },
  pace: (text) => (text === "" ? null : { per_second: Number(text), burst: Math.max(1, Math.ceil(Number(text))) }),
};

const fields = (form) => all("[data-sent]", form);
const typed = (field) => (field.type === "checkbox" ? (field.checked ? "true" : "") : field.value);

function showCommand(form) {
  const place = $("[data-command-of]", form);
  if (!place) return;
  const value = (name) => {
    const field = fields(form).find((field) => field.name === name);
    const text = field ? typed(field) : "";
    return field?.dataset.sent === "pace" && text === "" ? "null" : text;
  };
  const head = place.dataset.head.replace("{of}", form.closest("dialog")?.dataset.of ?? "");
  let text = head + options(place.dataset.options, value);
  text = text.replace(/ rate\.per_second=null$/, " rate=null");
  $("[data-command]", place).textContent = text;
}

function fail(form, error) {
  const place = $("[data-error]", form);
  place.textContent = error.message;
  place.hidden = false;
}

const isConfirmed = (form) => all("[data-confirm]", form).every((field) => field.value === field.dataset.confirm);

async function submitCall(form) {
  const body = form.dataset.body ? JSON.parse(form.dataset.body) : undefined;
  for (const field of fields(form)) {
    const value = SENT[field.dataset.sent](typed(field));
    if (value === undefined) continue;
    // A reset names what becomes of parked messages.
    if (field.name === "parked" && form.dataset.address.endsWith("/reset")) body.parked = "drop";
    else put(body, field.name, value);
  }
  // A dialog of several rows is opened by the button of one of them.
  const address = form.dataset.address.replace("{of}", encodeURIComponent(form.closest("dialog").dataset.of));
  const answer = await call(form.dataset.method, address, body);
  const done = form.dataset.done.replace(/\{(\w+)\}/g, (_, name) => String(answer[name] ?? ""));
  if (form.dataset.then) {
    sessionStorage.setItem("forebay-toast", done);
    location.assign(form.dataset.then);
    return;
  }
  toast(done);
  form.closest("dialog").close();
  refreshStatic();
}

/** Parts that are not live, as forms, are written anew by the server. */
async function refreshStatic() {
  try {
    const text = await (await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" })).text();
    const read = new DOMParser().parseFromString(text, "text/html");
    for (const selector of [".heading .buttons", ".settings", ".selected", ".listing"]) {
      const [old, next] = [$(selector), read.querySelector(selector)];
      if (!old || !next) continue;
      // Buttons keep the focus. Forms begin anew, with the values of the server.
      if (old.querySelector("form, input")) old.replaceWith(document.importNode(next, true));
      else morph(old, document.importNode(next, true));
    }
    prettify();
  } catch {
    // The live parts say that the server is gone.
  }
}

// ---- Dialogs ----

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  if (!target) return;
  const open = target.closest("[data-open]");
  if (open) {
    const dialog = document.getElementById(open.dataset.open);
    dialog.dataset.of = open.dataset.of || "";
    for (const place of all("[data-error]", dialog)) place.hidden = true;
    $("form", dialog)?.reset();
    for (const field of all("[data-confirm]", dialog)) field.dispatchEvent(new Event("input", { bubbles: true }));
    dialog.showModal();
    const form = $("form", dialog);
    if (form?.hasAttribute("data-parked-job")) openJob(dialog, form);
    else if (form) showCommand(form);
    return;
  }
  if (target.closest("[data-close]")) target.closest("dialog").close();
  const copy = target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard?.writeText($("[data-command]", copy.parentElement).textContent).then(
      () => toast("Copied"),
      () => toast("The browser does not allow it", "bad"),
    );
  }
  const cancel = target.closest("[data-cancel]");
  if (cancel) {
    cancel.disabled = true;
    call("DELETE", cancel.dataset.cancel).then(() => toast("Cancelled"), (error) => toast(error.message, "bad"));
  }
});

document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (!form) return;
  if (form.hasAttribute("data-call")) {
    showCommand(form);
    if ($("[data-confirm]", form)) $("[type=submit]", form).disabled = !isConfirmed(form);
  }
  if (form.hasAttribute("data-parked-job")) jobCommand(form);
  if (form.hasAttribute("data-settings")) showChanges(form);
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  const submit = form.hasAttribute("data-call")
    ? submitCall
    : form.hasAttribute("data-settings")
      ? submitSettings
      : form.hasAttribute("data-parked-job")
        ? submitJob
        : null;
  if (!submit) return;
  event.preventDefault();
  const button = $("[type=submit]", form);
  button.disabled = true;
  try {
    await submit(form);
  } catch (error) {
    fail(form, error);
  } finally {
    button.disabled = false;
  }
});

// ---- Settings ----

const KINDS = {
  switch: (text) => text === "true",
  number: (text) => (text === "" ? null : Number(text)),
  text: (text) => (text === "" ? null : text),
  any: (text) => {
    if (text === "") return null;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  },
};

const changed = (form) => all("[data-original]", form).filter((field) => field.value !== field.dataset.original);

function showChanges(form) {
  const changes = changed(form);
  const preview = $("[data-preview]", form);
  preview.hidden = changes.length === 0;
  const list = $("[data-changes]", preview);
  list.replaceChildren(
    ...changes.map((field) => {
      const item = document.createElement("li");
      const part = (name, text) => Object.assign(document.createElement(name), { textContent: text });
      const [was, is] = [field.dataset.original || "none", field.value || "none"];
      item.append(part("code", field.name), " ", part("del", was), " → ", part("ins", is));
      return item;
    }),
  );
  const pairs = changes.map((field) => ` ${shell(`${field.name}=${field.value || "null"}`)}`).join("");
  $("[data-command]", preview).textContent = form.dataset.head + pairs;
  $("[data-error]", preview).hidden = true;
}

async function submitSettings(form) {
  const body = {};
  for (const field of changed(form)) put(body, field.name, KINDS[field.dataset.kind](field.value.trim()));
  await call("PATCH", form.dataset.address, body);
  for (const field of changed(form)) field.dataset.original = field.value;
  showChanges(form);
  toast("The settings are changed");
  refreshStatic();
}

document.addEventListener("reset", (event) => {
  if (event.target.hasAttribute("data-settings")) {
    event.preventDefault();
    for (const field of changed(event.target)) field.value = field.dataset.original;
    showChanges(event.target);
  }
});

// ---- Parked messages ----

const picked = () => all("[data-seq]:checked").map((box) => Number(box.dataset.seq));

function showPicked() {
  const count = picked().length;
  const place = $("[data-selected-count]");
  if (!place) return;
  place.textContent = count === 0 ? "None selected" : `${count.toLocaleString("en")} selected`;
  for (const button of all("[data-of=selected]")) button.disabled = count === 0;
  const boxes = all("[data-seq]");
  const every = $("[data-select-all]");
  every.checked = boxes.length > 0 && count === boxes.length;
  every.indeterminate = count > 0 && count < boxes.length;
}

document.addEventListener("change", (event) => {
  if (event.target.matches?.("[data-select-all]")) {
    for (const box of all("[data-seq]")) box.checked = event.target.checked;
    showPicked();
  }
  if (event.target.matches?.("[data-seq]")) showPicked();
});

const selectionOf = (form) =>
  form.closest("dialog").dataset.of === "selected" ? { seqs: picked() } : JSON.parse(form.dataset.selection);

function jobCommand(form) {
  const isPicked = form.closest("dialog").dataset.of === "selected";
  const which = isPicked ? ` ${picked().join(" ")}` : form.dataset.options;
  const { rate, to } = form.elements;
  const goal = to ? ` --to ${to.value ? shell(to.value) : "STREAM"}` : "";
  const pace = rate.value ? ` --rate ${rate.value}` : "";
  $("[data-command]", form).textContent = form.dataset.head + which + goal + pace;
  const isEmpty = form.dataset.matched === undefined || form.dataset.matched === "0" || to?.value === "";
  $("[type=submit]", form).disabled = isEmpty || !isConfirmed(form);
}

/** The count is asked for before anything is done. */
async function openJob(dialog, form) {
  delete form.dataset.matched;
  $("[data-matched]", form).textContent = "…";
  jobCommand(form);
  try {
    const { matched } = await call("POST", form.dataset.count, { ...selectionOf(form), dry_run: true });
    form.dataset.matched = String(matched);
    $("[data-matched]", form).textContent = matched.toLocaleString("en");
    $("[data-matched-word]", form).textContent = matched === 1 ? "message matches" : "messages match";
  } catch (error) {
    fail(form, error);
  }
  jobCommand(form);
}

async function submitJob(form) {
  if (!isConfirmed(form)) throw new Error("Type the name to confirm.");
  const body = selectionOf(form);
  const { rate, to } = form.elements;
  if (rate.value) body.rate = { per_second: Number(rate.value), burst: 1 };
  if (to) body.to = to.value;
  const { matched, job } = await call("POST", form.dataset.address, body);
  form.closest("dialog").close();
  const begun = `Job ${job} has begun, with ${matched.toLocaleString("en")} messages`;
  toast(job === null ? "There was nothing to do" : begun);
  if (job !== null) await follow(form.dataset.address.replace(/parked\/\w+$/, `jobs/${job}`));
  await refreshStatic();
  showPicked();
}

/** Waits for a job to end; its progress is a live part of the page. */
async function follow(address) {
  for (let wait = 100; ; wait = Math.min(wait * 2, 2000)) {
    await new Promise((done) => setTimeout(done, wait));
    try {
      const { state, done } = await call("GET", address);
      if (state === "running") continue;
      const text = state === "done" ? `Done: ${done.toLocaleString("en")} messages` : `The job is ${state}`;
      toast(text, state === "failed" ? "bad" : "ok");
    } catch {
      // It is over and forgotten.
    }
    return;
  }
}

// ---- Comfort ----

/** JSON with line breaks, as text. */
function prettify() {
  for (const code of all("code[data-json]")) {
    try {
      code.textContent = JSON.stringify(JSON.parse(code.textContent), null, 2);
    } catch {
      // Too long to be whole: it stays as it is.
    }
    code.removeAttribute("data-json");
  }
}

const THEMES = ["system", "light", "dark"];
function showTheme() {
  const theme = root.dataset.theme || "system";
  const name = $("[data-theme-name]");
  if (name) name.textContent = theme[0].toUpperCase() + theme.slice(1);
}
document.addEventListener("click", (event) => {
  if (!event.target.closest?.("[data-theme-toggle]")) return;
  const next = THEMES[(THEMES.indexOf(root.dataset.theme || "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    localStorage.setItem("forebay-theme", next);
  } catch {
    // It lasts as long as the page.
  }
  showTheme();
});

// A search begins when the typing stops.
let searching = 0;
document.addEventListener("input", (event) => {
  if (!event.target.matches?.("[data-search]")) return;
  clearTimeout(searching);
  searching = setTimeout(() => event.target.form.requestSubmit(), 350);
});

// A figure of a chart under the pointer.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
document.addEventListener("pointermove", (event) => {
  const svg = event.target.closest?.(".plot svg") || event.target.closest?.(".plot")?.querySelector("svg");
  if (!svg) {
    tip.hidden = true;
    return;
  }
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width;
  if (x < 0 || x > 1) return;
  const top = Number(svg.dataset.top);
  const lines = all("path.stroke", svg).map((path) => {
    const value = valueAt(path, x * 1000);
    return value === null ? null : `${path.dataset.name} ${figure(((100 - value) / 98) * top)}${svg.dataset.unit}`;
  });
  const ago = Math.round(Number(svg.dataset.span) * (1 - x));
  tip.textContent = [`${span(ago)} ago`, ...lines.filter(Boolean)].join(" · ");
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY + 16}px`;
});

/** The height of a line at a place, from its own path. */
function valueAt(path, x) {
  const points = (path.dataset.d === path.getAttribute("d") && path.points) || null;
  const steps = () => [...path.getAttribute("d").matchAll(/([ML])(\d+) ([\d.]+)/g)];
  const read = points || steps().map((m) => [Number(m[2]), Number(m[3]), m[1]]);
  path.points = read;
  path.dataset.d = path.getAttribute("d");
  for (let n = 1; n < read.length; n += 1) {
    const [[x0, y0], [x1, y1, kind]] = [read[n - 1], read[n]];
    if (kind === "L" && x >= x0 && x <= x1) return y0 + ((y1 - y0) * (x - x0)) / Math.max(1, x1 - x0);
  }
  return null;
}

const figure = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
function span(seconds) {
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)}m`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)}h` : `${(seconds / 86400).toFixed(1)}d`;
}

// ---- Keys ----

const palette = $("[data-palette]");
let names = [];

async function openPalette() {
  palette.showModal();
  const input = $("input", palette);
  input.value = "";
  showNames("");
  try {
    const [streams, groups] = await Promise.all([
      call("GET", `${base}streams?limit=1000`),
      call("GET", `${base}subscriptions?limit=1000`),
    ]);
    const part = encodeURIComponent;
    names = [
      ...streams.streams.map(({ stream }) => [stream, `${base}ui/streams/${part(stream)}`]),
      ...groups.subscriptions.map(({ stream, group }) => [
        `${stream}/${group}`,
        `${base}ui/streams/${part(stream)}/groups/${part(group)}`,
      ]),
    ];
    showNames(input.value);
  } catch (error) {
    toast(error.message, "bad");
  }
}

function showNames(text) {
  const found = names.filter(([name]) => name.toLowerCase().includes(text.toLowerCase())).slice(0, 12);
  $("[data-palette-list]").replaceChildren(
    ...found.map(([name, address]) => {
      const item = document.createElement("li");
      item.append(Object.assign(document.createElement("a"), { href: address, textContent: name }));
      return item;
    }),
  );
}

palette.addEventListener("input", (event) => showNames(event.target.value));
$("form", palette).addEventListener("submit", (event) => {
  event.preventDefault();
  $("[data-palette-list] a")?.click();
});

const GO = { o: "", s: "ui/streams", g: "ui/groups", p: "ui/parked", d: "ui/delayed", c: "ui/clients", n: "ui/node" };
if ($('.side a[href$="ui/cluster"]')) GO.l = "ui/cluster";
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    openPalette();
    return;
  }
  const isTyping = event.target.matches?.("input, textarea, select") || $("dialog[open]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (going && event.key in GO) location.assign(base + GO[event.key]);
  going = event.key === "g";
  if (event.key === "/") {
    const field = $("[data-search], .filter input");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

// ---- Begin ----

const search = $("[data-search][autofocus]");
search?.setSelectionRange(search.value.length, search.value.length);
showTheme();
prettify();
showPicked();
const left = sessionStorage.getItem("forebay-toast");
if (left) {
  sessionStorage.removeItem("forebay-toast");
  toast(left);
}
listen();
