// Charts of the last hour.
import { html, span } from "../ui/ui.js";

const width = 320;
const height = 90;
const hour = 3_600_000;

/**
 * Chart shows one or two series over the last hour, with their limit. Times without samples are gaps.
 * @param {{ title: string, now: string, samples: { time: string, values: number[] }[], limit?: number, names?: string[], format: (n: number) => string, gap: number }} props
 */
export function Chart({ title, now, samples, limit = 0, names = [], format, gap }) {
  const end = Date.now();
  const first = samples.length ? new Date(samples[0].time).getTime() : end;
  const range = Math.min(hour, Math.max(hour / 30, end - first));
  const known = samples.map((s) => ({ at: new Date(s.time).getTime(), values: s.values })).filter((s) => s.at >= end - range && s.values.every((v) => v >= 0));
  const peak = Math.max(0, ...known.flatMap((s) => s.values));
  const top = Math.max(limit, peak * (limit ? 1 : 1.15)) || 1;
  const x = (/** @type {number} */ at) => ((at - end + range) / range) * width;
  const y = (/** @type {number} */ v) => height - 2 - (v / top) * (height - 8);
  const runs = (/** @type {number} */ i) => {
    /** @type {string[][]} */
    const all = [];
    let last = -Infinity;
    for (const s of known) {
      if (s.at - last > gap * 3000 + 60_000) all.push([]);
      all[all.length - 1].push(`${x(s.at).toFixed(1)},${y(s.values[i]).toFixed(1)}`);
      last = s.at;
    }
    return all;
  };
  const lines = (samples[0]?.values || []).map((_, i) => i);
  const label = known.length ? `${title} during the last ${span(range / 1000)}: now ${now}, at most ${format(peak)}${limit ? `, limit ${format(limit)}` : ""}` : `${title}: no samples yet`;
  return html`<figure class="chart card"><figcaption><span class="dim">${title}</span><b>${now}</b></figcaption>
    <svg viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label=${label}>
      <path class="grid" d=${[1, 2, 3].map((q) => `M${(width * q) / 4} 0V${height}`).join("")} />
      ${limit > 0 && html`<path class="limit" d=${`M0 ${y(limit)}H${width}`} />`}
      ${lines.map((i) => runs(i).map((points) => html`${i === 0 && points.length > 1 && html`<path class="area" d=${`M${points[0].split(",")[0]},${height}L${points.join(" ")}L${points[points.length - 1].split(",")[0]},${height}Z`} />`}<polyline class=${`line line-${i}`} points=${points.join(" ")} />`))}
    </svg>
    <div class="axis dim"><span>${span(range / 1000)} ago</span><span>${names.length > 1 ? names.map((n, i) => html`<span class=${`key key-${i}`}>${n}</span> `) : known.length ? `peak ${format(peak)}` : "measuring…"}</span><span>now</span></div></figure>`;
}

/** Spark shows the latest values without axes. @param {{ values: number[], limit: number, label: string }} props */
export function Spark({ values, limit, label }) {
  const top = Math.max(limit, ...values) || 1;
  const step = 60 / Math.max(1, values.length - 1);
  return html`<svg class="spark" viewBox="0 0 60 16" preserveAspectRatio="none" role="img" aria-label=${label}><polyline points=${values.map((v, i) => `${(i * step).toFixed(1)},${(15 - (Math.max(0, v) / top) * 14).toFixed(1)}`).join(" ")} /></svg>`;
}
