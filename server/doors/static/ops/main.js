// The operators' page: the server's own account of itself, once a second.

import { Announcer } from "./announcer.js";
import { Charts } from "./charts.js";
import { attribute, find, make, share, write } from "./dom.js";
import { Feed } from "./feed.js";
import { figures, gpus } from "./figures.js";
import { History } from "./history.js";
import { Operate } from "./operate.js";
import { Processes } from "./processes.js";
import * as words from "./words.js";

const url = (path) => new URL(`../../${path}`, import.meta.url);
const LEGIBLE = 0.1; // of the strip: a word fits
const THEMES = { system: "light dark", dark: "dark", light: "light" };

class Ops {
  #history = new History();
  #charts = new Charts(find("charts"));
  #operate = new Operate(url);
  #processes = new Processes(find("processes"), (verb, id) => this.#operate.ask(verb, id));
  #announcer = new Announcer();

  run() {
    this.#colours(localStorage.getItem("theme") ?? "system");
    find("theme").addEventListener("click", () => this.#nextColours());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#charts.repaint());
    new Feed(
      { stream: url("v1/ops/stream"), history: url("v1/ops/history") },
      {
        document: (document) => this.#document(document),
        history: (columns) => this.#past(() => this.#history.merge(columns)),
        row: (row) => this.#past(() => this.#history.add(row)),
        state: (state) => this.#state(state),
      },
    ).run();
  }

  #document(told) {
    this.#about(told.status);
    this.#diagnosis(told);
    figures(told.live);
    gpus(told.gpus);
    this.#processes.show(told);
    find("no-processes").hidden = true;
  }

  #state(state) {
    const [text, tone] = words.connection(state);
    write(find("status"), text);
    find("link").dataset.tone = tone;
    document.body.classList.toggle("stale", state.state !== "live");
    if (state.state === "live" || !state.at) return;
    find("diagnosis").dataset.tone = "bad"; // what was true is not, perhaps: nothing old may pass for the present
    write(find("limit"), "No data");
    write(find("sentence"), `${text}${/[.…]$/.test(text) ? "" : "."}`);
    write(find("advice"), "What is shown below is the last that was heard.");
  }

  #about({ version, pipeline, device, uptime_s }) {
    find("simulated").hidden = !device.simulated;
    write(find("about"), `${pipeline} on ${device.used} · ${version} · up ${words.duration(uptime_s)}`);
    write(find("processes-title"), device.simulated ? "Slots (SIMULATED) and workers" : "Slots and workers");
  }

  #diagnosis(told) {
    const [headline, tone] = words.headline(told);
    const { sentence, advice } = told.diagnosis;
    find("diagnosis").dataset.tone = tone;
    write(find("limit"), headline);
    write(find("sentence"), words.sentence(sentence));
    write(find("advice"), words.sentence(advice));
    const kind = told.status.ready ? told.diagnosis.limit : headline;
    const news = this.#announcer.hear(kind, `${headline}. ${sentence}`, performance.now());
    if (news) write(find("announcement"), news);
    const simulated = told.status.device.simulated ? "SIMULATED " : "";
    const title = `${told.status.ready ? words.limitWord(told.diagnosis.limit) : headline} · ${simulated}Framelane operations`;
    if (document.title !== title) document.title = title;
  }

  #past(change) {
    change();
    const now = this.#history.last?.at ?? Date.now() / 1000;
    this.#charts.draw(this.#history, now);
    this.#strip(this.#history.runs(), this.#history.begin(now), now);
  }

  /** What limited the server when, as a strip. */
  #strip(all, from, now) {
    const strip = find("strip");
    const runs = all.filter(({ to }) => to > from);
    const parts = runs.length ? [{ limit: null, from, to: Math.max(from, runs[0].from) }, ...runs] : [];
    while (strip.children.length > parts.length) strip.lastChild.remove();
    while (strip.children.length < parts.length) strip.append(make("i"));
    parts.forEach(({ limit, from: begin, to }, i) => {
      const part = (to - Math.max(begin, from)) / (now - from);
      share(strip.children[i], part);
      attribute(strip.children[i], "data-limit", limit ?? "unknown");
      attribute(strip.children[i], "title", limit ? `${words.limitWord(limit)} until ${words.clock(to)}` : "");
      write(strip.children[i], part > LEGIBLE && limit && limit !== "idle" ? words.limitWord(limit) : "");
    });
    const minutes = {};
    for (const { limit, from: begin, to } of runs) if (limit) minutes[limit] = (minutes[limit] ?? 0) + (to - begin) / 60;
    const told = Object.entries(minutes).map(([limit, value]) => `${words.limitWord(limit)} for ${value.toFixed(1)} minutes`);
    attribute(strip, "aria-label", `What limited this server lately: ${told.join(", ") || "nothing known yet"}`);
  }

  #nextColours() {
    const names = Object.keys(THEMES);
    this.#colours(names[(names.indexOf(find("theme").dataset.theme) + 1) % names.length]);
  }

  #colours(name) {
    const theme = name in THEMES ? name : "system";
    document.documentElement.style.colorScheme = THEMES[theme];
    find("theme").dataset.theme = theme;
    write(find("theme"), `Colours: ${theme}`);
    localStorage.setItem("theme", theme);
    this.#charts.repaint();
  }
}

new Ops().run();
