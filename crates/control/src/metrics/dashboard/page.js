// Asks the daemon for its figures each second, and shows them. Everything that comes from the daemon
// is inserted as text: names of ports and paths may hold any character.

import { element, showDiagram } from "./diagram.js";
import { STATES, bits, bytes, count, grown, named, perSecond, percent, quantile, rate, several } from "./figures.js";

const PERIOD = 1000; // milliseconds
const MINUTE = 60; // samples
const WINDOW = 10; // seconds that latency is shown of
const samples = []; // the newest last
const histories = new Map(); // of each port: bytes per second, sent and received
let paused = false;

const byId = (id) => document.getElementById(id);
const wanted = (name) => name.includes(byId("filter").value);

// The page.

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A cell is text, or an object with text and the data of what stands beside it.
function setCell(node, cell) {
  const { text, state, meter, spark } = typeof cell === "string" ? { text: cell } : cell;
  if (!node.firstElementChild) node.append(document.createElement("span"));
  setText(node.firstElementChild, text);
  if (state !== undefined) node.dataset.state = state;
  if (meter !== undefined) {
    let bar = node.querySelector("meter");
    if (!bar) {
      bar = document.createElement("meter");
      bar.setAttribute("aria-hidden", "true");
      node.append(" ", bar);
    }
    bar.value = meter;
  }
  if (spark !== undefined) drawSpark(node, spark);
}

function drawSpark(node, values) {
  let line = node.querySelector("polyline");
  if (!line) {
    const svg = element("svg", { class: "spark", viewBox: `0 0 ${MINUTE - 1} 20`, preserveAspectRatio: "none", "aria-hidden": "true" });
    line = element("polyline", {});
    svg.append(line);
    node.append(svg);
  }
  const most = Math.max(1, ...values);
  const from = MINUTE - values.length;
  const points = values.map((value, at) => `${from + at},${(19 - (18 * value) / most).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
}

// Puts rows of cells into a table. Rows stay where they are, so that a selection survives.
function fill(id, rows) {
  const table = byId(id);
  const body = table.tBodies[0];
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] ?? addRow(body, columns);
    cells.forEach((cell, column) => setCell(row.cells[column], cell));
  });
  table.hidden = rows.length === 0;
  table.nextElementSibling.hidden = rows.length > 0;
}

function addRow(body, columns) {
  const row = body.insertRow();
  columns.forEach((column, at) => {
    const cell = document.createElement(at === 0 ? "th" : "td");
    if (at === 0) cell.scope = "row";
    cell.dataset.column = column;
    row.append(cell);
  });
  return row;
}

const stateCell = ({ state, reason }) => {
  const text = `${STATES[state] ?? "?"} ${state}`;
  return { text: reason ? `${text}: ${reason}` : text, state };
};

// "0→1, 1→0": which queue is on which worker.
function placement(queues) {
  const served = queues.filter((queue) => queue.worker !== null);
  return served.map((queue) => `${queue.index}→${queue.worker}`).join(", ") || "–";
}

function showDaemon(now, before, seconds) {
  const cpu = before && seconds > 0 ? grown(now.cpu_seconds, before.cpu_seconds) / seconds : null;
  const hours = Math.floor(now.uptime_seconds / 3600);
  const minutes = Math.floor((now.uptime_seconds % 3600) / 60);
  const words = [
    `Version ${now.release}, process ${now.pid}`,
    `running for ${hours} h ${minutes} min`,
    cpu === null ? "" : `uses ${percent(cpu)} of a CPU`,
    `${several(now.ports.length, "port")}, ${several(now.disks.length, "disk")}, ${several(now.workers.length, "worker")}`,
  ];
  setText(byId("daemon"), `${words.filter(Boolean).join("; ")}.`);
}

function showPorts(now, before, seconds) {
  const dropped = (port) => Object.values(port.total.drops).reduce((a, b) => a + b, 0);
  const rows = now.ports.filter((port) => wanted(port.name)).map((port) => {
    const old = named(before?.ports, port.name);
    const of = (counter) => rate(port, old, seconds, counter);
    const received = (it) => it.total.rx_frames + it.total.direct_frames;
    return [
      port.name,
      port.kind.replace("_", "-"),
      stateCell(port),
      { text: bits(of((it) => it.total.tx_bytes * 8)), spark: histories.get(port.name)?.sent ?? [] },
      perSecond(of((it) => it.total.tx_frames)),
      {
        text: bits(of((it) => (it.total.rx_bytes + it.total.direct_bytes) * 8)),
        spark: histories.get(port.name)?.received ?? [],
      },
      perSecond(of(received)),
      `${perSecond(of(dropped))} (${count(dropped(port))} in all)`,
      placement(port.queues),
    ];
  });
  fill("ports", rows);
}

function keepHistories(now, before, seconds) {
  if (!before || seconds <= 0) return;
  [...histories.keys()].filter((name) => !named(now.ports, name)).forEach((name) => histories.delete(name));
  now.ports.forEach((port) => {
    const old = named(before.ports, port.name);
    const history = histories.get(port.name) ?? { sent: [], received: [] };
    const add = (list, counter) => {
      list.push(rate(port, old, seconds, counter) ?? 0);
      if (list.length > MINUTE) list.shift();
    };
    add(history.sent, (it) => it.total.tx_bytes);
    add(history.received, (it) => it.total.rx_bytes + it.total.direct_bytes);
    histories.set(port.name, history);
  });
}

function showWorkers(now, before, seconds) {
  const rows = now.workers.map((worker) => {
    const old = before?.workers[worker.index];
    const of = (counter) => rate(worker, old, seconds, counter);
    const busy = of((it) => it.busy_us / 1e6);
    const asleep = of((it) => ((it.polling?.state_ns.sleep ?? 0) + (it.polling?.state_ns.nap ?? 0)) / 1e9);
    const share = (part) => (part === null ? "–" : { text: percent(Math.min(1, part)), meter: Math.min(1, part) });
    const hits = of((it) => it.cache_hits);
    const looked = of((it) => it.cache_hits + it.cache_misses);
    const queues = [...now.ports, ...now.disks].flatMap((owner) =>
      owner.queues.filter((queue) => queue.worker === worker.index).map((queue) => `${owner.name}:${queue.index}`));
    return [
      String(worker.index),
      worker.cpu === null ? "not pinned" : String(worker.cpu),
      share(busy),
      share(asleep),
      perSecond(of((it) => it.busy_passes)),
      looked > 0 ? percent(hits / looked) : "–",
      perSecond(of((it) => it.handed_off)),
      worker.polling ? worker.polling.policy + (worker.polling.suspended ? ", suspended" : "") : "–",
      queues.length > 12 ? `${queues.slice(0, 12).join(", ")} and ${queues.length - 12} more` : queues.join(", ") || "–",
    ];
  });
  fill("workers", rows);
}

function showDisks(now, before, seconds) {
  const failed = (disk) => Object.entries(disk.total.errors).filter(([, failures]) => failures > 0);
  const rows = now.disks.filter((disk) => wanted(disk.name)).map((disk) => {
    const old = named(before?.disks, disk.name);
    const of = (counter) => rate(disk, old, seconds, (it) => it.total[counter]);
    return [
      disk.name,
      stateCell(disk),
      disk.image,
      perSecond(of("reads")),
      bytes(of("read_bytes")),
      perSecond(of("writes")),
      bytes(of("write_bytes")),
      perSecond(of("flushes")),
      failed(disk).map(([reason, failures]) => `${reason} ${failures}`).join(", ") || "none",
      placement(disk.queues),
    ];
  });
  fill("disks", rows);
}

function showLatency(now) {
  const before = samples.find((sample) => now.uptime_seconds - sample.uptime_seconds <= WINDOW + 0.5);
  const rows = [];
  const add = (owner, what, durations, old) => {
    const counts = durations.counts.map((count, at) => grown(count, old?.counts[at] ?? 0));
    const sum = counts.reduce((a, b) => a + b, 0);
    if (durations.counts.every((count) => count === 0)) return;
    rows.push([owner, what, String(sum), quantile(counts, 0.5), quantile(counts, 0.99)]);
  };
  now.disks.filter((disk) => wanted(disk.name)).forEach((disk) => {
    const old = named(before?.disks, disk.name);
    Object.entries(disk.latency).forEach(([operation, durations]) =>
      add(disk.name, `${operation.replace("_", " ")} requests`, durations, old?.latency[operation]));
  });
  now.ports.filter((port) => wanted(port.name)).forEach((port) =>
    add(port.name, "senders' waits for room", port.waits, named(before?.ports, port.name)?.waits));
  now.workers.forEach((worker) =>
    add(`worker ${worker.index}`, "passes with work", worker.busy, before?.workers[worker.index]?.busy));
  fill("latency", rows);
}

function showDrops(now, before, seconds) {
  const rows = [];
  const add = (owner, drops, old) => Object.entries(drops).filter(([, lost]) => lost > 0).forEach(([reason, lost]) => {
    const speed = old && seconds > 0 ? grown(lost, old[reason] ?? 0) / seconds : null;
    rows.push({ lost, cells: [owner, reason, perSecond(speed), count(lost)] });
  });
  now.ports.filter((port) => wanted(port.name)).forEach((port) =>
    add(port.name, port.total.drops, named(before?.ports, port.name)?.total.drops));
  add("removed ports", now.removed.drops, before?.removed.drops);
  rows.sort((a, b) => b.lost - a.lost);
  fill("drops", rows.map((row) => row.cells));
}

function showEvents(now) {
  const rows = [...now.events].reverse().map((event) => [
    new Date(event.unix_ms).toLocaleString(),
    { text: event.level.toLowerCase(), state: event.level },
    event.text,
  ]);
  fill("events", rows);
}

// Asking.

function show() {
  const now = samples.at(-1);
  if (!now) return;
  const before = samples.at(-2);
  const seconds = before ? now.uptime_seconds - before.uptime_seconds : 0;
  showDaemon(now, before, seconds);
  const left = showDiagram(byId("diagram"), wanted, [now, before, seconds]);
  setText(byId("diagram-more"), left > 0 ? `${left} more are in the tables, or do not match the name.` : "");
  showPorts(now, before, seconds);
  showWorkers(now, before, seconds);
  showDisks(now, before, seconds);
  showLatency(now);
  showDrops(now, before, seconds);
  showEvents(now);
}

function answered(text, state) {
  const answer = byId("answer");
  setText(answer, text);
  answer.dataset.state = state;
}

async function ask() {
  try {
    const answer = await fetch("dashboard/state.json", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`the daemon answered ${answer.status}`);
    const state = await answer.json();
    if (samples.length > 0 && samples.at(-1).pid !== state.pid) {
      samples.length = 0; // another daemon, whose counters start anew
      histories.clear();
    }
    samples.push(state);
    if (samples.length > WINDOW + 2) samples.shift();
    keepHistories(state, samples.at(-2), samples.length > 1 ? state.uptime_seconds - samples.at(-2).uptime_seconds : 0);
    answered("Live: figures are read each second.", "live");
    show();
  } catch (error) {
    const last = samples.length > 0 ? "; the figures are old" : "";
    answered(`✕ No answer (${error.message})${last}. Trying again.`, "lost");
  }
}

async function run() {
  for (;;) {
    if (!paused && !document.hidden) await ask();
    await new Promise((resume) => setTimeout(resume, PERIOD));
  }
}

byId("pause").addEventListener("click", (event) => {
  paused = !paused;
  event.currentTarget.setAttribute("aria-pressed", String(paused));
  setText(event.currentTarget, paused ? "Resume" : "Pause");
  if (paused) answered("Paused: the figures are old.", "paused");
});
byId("filter").addEventListener("input", show);
window.addEventListener("resize", show);
run();
