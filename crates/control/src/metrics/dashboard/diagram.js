// The diagram: ports and disks on the left, workers in the middle, the switch on the right.

import { STATES, named, rate } from "./figures.js";

const MOST_DRAWN = 40; // ports, and disks
const SVG = "http://www.w3.org/2000/svg";

// What is drawn, and the lines whose thickness changes.
let drawn = "";
let links = [];

// Draws the ports and disks that are `wanted`, on an <svg>. Returns how many are left out.
export function showDiagram(svg, wanted, [now, before, seconds]) {
  const width = Math.max(300, svg.clientWidth);
  const owners = [
    ...now.ports.filter((port) => wanted(port.name)).slice(0, MOST_DRAWN).map((it) => ({ ...it, disk: false })),
    ...now.disks.filter((disk) => wanted(disk.name)).slice(0, MOST_DRAWN).map((it) => ({ ...it, disk: true })),
  ];
  const shape = owners.map((it) => [it.name, it.disk, it.state, it.queues.map((queue) => [queue.index, queue.worker])]);
  const key = JSON.stringify([width, now.workers.length, shape]);
  if (key !== drawn) {
    draw(svg, width, owners, now.workers);
    drawn = key;
  }
  links.forEach(({ path, list, name, index, bytesOf }) => {
    const find = (sample) => named(sample?.[list], name)?.queues.find((queue) => queue.index === index);
    const queue = find(now);
    const speed = queue ? rate(queue, find(before), seconds, bytesOf) : null;
    const thickness = speed ? 1 + Math.min(5, Math.log10(1 + speed / 1000)) : 1;
    path.setAttribute("stroke-width", thickness.toFixed(1));
  });
  return now.ports.length + now.disks.length - owners.length;
}

function draw(svg, width, owners, workers) {
  const row = 40;
  const left = Math.min(260, width * 0.42);
  const middle = Math.min(130, width * 0.24);
  const right = 30;
  const workerX = left + (width - left - middle - right) * 0.6;
  const height = Math.max(owners.length, workers.length, 2) * row + 8;
  const spread = (count, at) => (height / count) * (at + 0.5);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  links = [];
  const paths = [];
  const boxes = [];
  const numbers = [];
  const box = (kind, x, y, w, title, detail) => {
    const fits = (text, size) => (text.length * size > w - 12 ? `${text.slice(0, Math.floor((w - 12) / size) - 1)}…` : text);
    const group = element("g", {});
    group.append(
      element("title", {}, `${title}: ${detail}`),
      element("rect", { x, y: y - 16, width: w, height: 32, rx: 5, class: kind }),
      element("text", { x: x + 6, y: y - 2 }, fits(title, 7.5)),
      element("text", { x: x + 6, y: y + 11, class: "small" }, fits(detail, 6.3)),
    );
    boxes.push(group);
  };
  workers.forEach((worker, at) => {
    const y = spread(workers.length, at);
    box("worker", workerX, y, middle, `worker ${worker.index}`, worker.cpu === null ? "not pinned" : `CPU ${worker.cpu}`);
    paths.push(element("path", { d: `M${workerX + middle} ${y}H${width - right - 2}`, "stroke-width": 2 }));
  });
  owners.forEach((owner, at) => {
    const y = spread(owners.length, at);
    const off = owner.state === "connected" ? "" : " off";
    box(`owner${off}`, 1, y, left - 2, owner.name, `${owner.disk ? "disk" : "port"}, ${STATES[owner.state] ?? "?"} ${owner.state}`);
    const served = owner.queues.filter((queue) => queue.worker !== null && queue.worker < workers.length);
    served.forEach((queue, position) => {
      const from = y + (position - (served.length - 1) / 2) * Math.min(10, 28 / served.length);
      const to = spread(workers.length, queue.worker);
      const bend = (workerX - left) / 2;
      const path = element("path", {
        d: `M${left} ${from}C${left + bend} ${from} ${workerX - bend} ${to} ${workerX} ${to}`,
        class: owner.disk ? "disk" : "port",
      });
      paths.push(path);
      numbers.push(element("text", { x: left + 4, y: from + 4, class: "small number" }, String(queue.index)));
      const bytesOf = owner.disk
        ? (it) => it.read_bytes + it.write_bytes
        : (it) => it.tx_bytes + it.rx_bytes + it.direct_bytes;
      links.push({ path, list: owner.disk ? "disks" : "ports", name: owner.name, index: queue.index, bytesOf });
    });
  });
  const x = width - right;
  boxes.push(
    element("rect", { x, y: 2, width: right - 2, height: height - 4, rx: 5, class: "switch" }),
    element("text", { "text-anchor": "middle", transform: `translate(${x + 18} ${height / 2}) rotate(90)` }, "switch"),
  );
  svg.append(...paths, ...boxes, ...numbers);
}

export function element(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  if (text !== undefined) node.textContent = text;
  return node;
}
