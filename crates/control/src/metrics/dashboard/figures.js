// Figures as text, and the differences between two samples.

// Each state of a port or disk has a shape of its own.
export const STATES = {
  connected: "●", listening: "○", connecting: "◌", stalled: "◐", down: "▽", stopped: "✕",
};

export function scaled(value, unit) {
  const prefixes = ["", "k", "M", "G", "T"];
  let at = 0;
  while (value >= 999.5 && at < prefixes.length - 1) {
    value /= 1000;
    at += 1;
  }
  const digits = value > 0 && value < 9.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${prefixes[at]}${unit}`;
}

// A number of things.
export const count = (value) => (value < 1000 ? String(value) : scaled(value, ""));
export const several = (value, thing) => `${value} ${thing}${value === 1 ? "" : "s"}`;
export const perSecond = (value) => (value === null ? "–" : scaled(value, "/s"));
export const bits = (value) => (value === null ? "–" : scaled(value, "b/s"));
export const bytes = (value) => (value === null ? "–" : scaled(value, "B/s"));
export const percent = (part) => `${(part * 100).toFixed(part < 0.0995 ? 1 : 0)} %`;

export function microseconds(value) {
  if (value < 1000) return `${value} us`;
  return value < 1e6 ? `${(value / 1000).toPrecision(3)} ms` : `${(value / 1e6).toPrecision(3)} s`;
}

// The bound of the class in which a part of all durations ends.
export function quantile(counts, part) {
  const sum = counts.reduce((a, b) => a + b, 0);
  let left = sum * part;
  const found = counts.findIndex((count) => (left -= count) <= 0 && count > 0);
  if (found < 0) return "–";
  const last = found === counts.length - 1;
  return last ? `> ${microseconds(2 ** (found - 1))}` : `≤ ${microseconds(2 ** found)}`;
}

// Differences between two samples.

export const named = (items, name) => items?.find((it) => it.name === name);
export const grown = (now, before) => Math.max(0, now - before);

// The rate of a counter of `item`, whose state before was `old`; null: not known yet.
export function rate(item, old, seconds, counter) {
  return old && seconds > 0 ? grown(counter(item), counter(old)) / seconds : null;
}
