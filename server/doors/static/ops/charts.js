// The last 15 minutes as charts. uPlot draws; legends, colours and words for screen readers are ours.

import { attribute, make, write } from "./dom.js";
import { DROPS, clock, ms, percent, rate } from "./words.js";

/* global uPlot */

const HHMM = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const hhmm = (seconds) => HHMM.format(seconds * 1000);
const perSecond = (value) => `${rate(value)}/s`;

const CHARTS = [
  {
    title: "Frames per second",
    format: perSecond,
    axis: rate,
    least: 10,
    series: [
      ["received_per_s", "received"],
      ["goodput_per_s", "goodput"],
      ["capacity_fps", "capacity"],
    ],
  },
  {
    title: "Age of results",
    format: ms,
    least: 20,
    series: [
      ["p50_ms", "p50"],
      ["p95_ms", "p95"],
      ["p99_ms", "p99"],
    ],
  },
  {
    title: "Frames per second without an answer",
    format: perSecond,
    axis: rate,
    least: 1,
    sparse: "None in this time",
    series: Object.entries(DROPS).map(([reason, words]) => [`drop_${reason}_per_s`, words, reason]),
  },
  {
    title: "Busy",
    format: percent,
    least: 1,
    most: 1,
    series: [
      ["gateway_busy", "gateway"],
      ["workers_busy", "workers"],
      ["slots_busy", "slots"],
      ["gpu_busy", "GPU"],
      ["cores_busy", "all cores"],
    ],
  },
];
const DASHED = new Set(["capacity_fps", "cores_busy", "p99_ms"]);

export class Charts {
  #charts;

  constructor(element) {
    this.#charts = CHARTS.map((kind) => new Chart(kind));
    element.append(...this.#charts.map(({ figure }) => figure));
    this.#charts.forEach((chart) => chart.begin());
  }

  draw(history, now) {
    this.#charts.forEach((chart) => chart.draw(history, now));
  }

  /** Colours have changed. */
  repaint() {
    this.#charts.forEach((chart) => chart.repaint());
  }
}

class Chart {
  #kind;
  #keys;
  #values;
  #plot = null;
  #place = make("div.plot");
  #none;
  #range = [0, 1];
  #high = 0;

  constructor(kind) {
    this.#kind = kind;
    const entries = kind.series.map(([name, words, key]) => {
      const entry = make("li", make("i"), words, make("b"));
      entry.dataset.series = key ?? name;
      return entry;
    });
    this.#keys = entries.map((entry) => entry.firstChild);
    this.#values = entries.map((entry) => entry.lastChild);
    this.#none = make("p.quiet", kind.sparse ?? "");
    this.figure = make("figure.chart", make("figcaption", kind.title), make("ul.legend", ...entries), this.#none, this.#place);
    attribute(this.#place, "role", "img");
    attribute(this.#place, "tabindex", "0");
    attribute(this.#place, "aria-label", `${kind.title}: nothing known yet`);
  }

  /** To be called once the figure is in the document, so that it has a size. */
  begin() {
    this.#plot = new uPlot(this.#options(), [[], ...this.#kind.series.map(() => [])], this.#place);
    new ResizeObserver(() => this.#plot.setSize(this.#size())).observe(this.#place);
    this.#place.addEventListener("keydown", (event) => this.#walk(event));
    this.#place.addEventListener("blur", () => this.#plot.setCursor({ left: -10, top: -10 }));
  }

  draw(history, now) {
    this.#range = [history.begin(now), now];
    const data = history.columns(this.#kind.series.map(([name]) => name));
    const shown = data.slice(1).map((column) => column.some((value) => (this.#kind.sparse ? value > 0 : value != null)));
    this.#high = Math.max(0, ...data.slice(1).flat());
    this.#plot.batch(() => {
      shown.forEach((show, i) => this.#plot.series[i + 1].show !== show && this.#plot.setSeries(i + 1, { show }));
      this.#plot.setData(data, true);
    });
    shown.forEach((show, i) => (this.#keys[i].parentElement.hidden = !show));
    this.#none.hidden = !this.#kind.sparse || shown.some(Boolean);
    this.#legend();
    attribute(this.#place, "aria-label", this.#summary(data, shown));
  }

  repaint() {
    this.#plot.redraw(false);
  }

  /** The values under the cursor, or the last ones. */
  #legend() {
    const { data, cursor } = this.#plot;
    const index = cursor.idx ?? data[0].length - 1;
    this.#values.forEach((value, i) => {
      const number = data[i + 1][index];
      write(value, number == null ? "–" : this.#kind.format(number));
    });
    const [caption] = this.figure.children;
    write(caption, cursor.idx == null ? this.#kind.title : `${this.#kind.title} at ${clock(data[0][index])}`);
  }

  /** Arrow keys move the cursor as the mouse does. */
  #walk(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const times = this.#plot.data[0];
    if (!step || !times.length) return;
    event.preventDefault();
    const from = this.#plot.cursor.idx ?? times.length - (step < 0 ? 0 : 1);
    const index = Math.min(times.length - 1, Math.max(0, from + step));
    this.#plot.setCursor({ left: this.#plot.valToPos(times[index], "x"), top: 10 });
  }

  #summary(data, shown) {
    const told = this.#kind.series.flatMap(([, words], i) => {
      const values = data[i + 1].filter((value) => value != null);
      if (!shown[i] || !values.length) return [];
      const [now, low, high] = [values.at(-1), Math.min(...values), Math.max(...values)].map(this.#kind.format);
      return [`${words} now ${now}, between ${low} and ${high}`];
    });
    const minutes = Math.round((this.#range[1] - this.#range[0]) / 60);
    return `${this.#kind.title} of the last ${minutes} minutes: ${told.join("; ") || (this.#kind.sparse ?? "nothing known yet")}`;
  }

  #size() {
    const { clientWidth, clientHeight } = this.#place;
    return { width: Math.max(120, clientWidth), height: Math.max(80, clientHeight) };
  }

  #options() {
    const style = getComputedStyle(document.body);
    const size = parseFloat(style.fontSize) * 0.75;
    const axis = {
      stroke: () => colour(this.figure.firstChild),
      font: `${size}px ${style.fontFamily}`,
      grid: { stroke: () => colour(this.#place, "borderTopColor"), width: 1 },
      ticks: { show: false },
    };
    return {
      ...this.#size(),
      legend: { show: false },
      padding: [size, size, 0, 0],
      cursor: { sync: { key: "ops" }, drag: { setScale: false, x: false }, points: { size: 7 } },
      scales: {
        x: { time: true, range: () => this.#range },
        y: { range: () => [0, this.#kind.most ?? Math.max(this.#kind.least, 1.1 * this.#high)] },
      },
      axes: [
        { ...axis, size: 2.2 * size, space: 5 * size, values: (_, splits, __, ___, step) => splits.map(step < 60 ? clock : hhmm) },
        { ...axis, size: 4.6 * size, space: 2.5 * size, values: (_, splits) => splits.map(this.#kind.axis ?? this.#kind.format) },
      ],
      series: [
        {},
        ...this.#kind.series.map(([name], i) => ({
          stroke: () => colour(this.#keys[i], "backgroundColor"),
          width: 2,
          dash: DASHED.has(name) ? [5, 4] : undefined,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [() => this.#plot && this.#legend()] },
    };
  }
}

/** The colour that the style sheet gives; a canvas cannot read its variables. */
function colour(element, property = "color") {
  return getComputedStyle(element)[property];
}
