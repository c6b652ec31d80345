// Every process with its state and how busy it is; an operator's verbs beside the slots.

import { attribute, make, share, write } from "./dom.js";
import { bytes, percent, rate } from "./words.js";

const ORDER = ["slot", "worker", "gateway", "audit"];
const VERBS = { active: ["drain", "restart"], standby: ["promote", "restart"], audit: ["restart"], "given up": ["restart"] };
const NAMES = { promote: "Promote", drain: "Drain", restart: "Restart" };

export class Processes {
  #list;
  #ask;
  #rows = new Map();

  /** `ask(verb, id)` is called when an operator presses a button. */
  constructor(list, ask) {
    this.#list = list;
    this.#ask = ask;
  }

  show({ processes, status }) {
    const given = Object.entries(status.given_up ?? {}).map(([id, why]) => ({
      kind: id.split("-")[0],
      id,
      state: "given up",
      why,
    }));
    const entries = [...processes.filter(({ id }) => !(id in (status.given_up ?? {}))), ...given].sort(
      (a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || a.id.localeCompare(b.id, "en", { numeric: true }),
    );
    for (const id of this.#rows.keys()) if (!entries.some((entry) => entry.id === id)) this.#remove(id);
    entries.forEach((entry, index) => {
      const row = this.#rows.get(entry.id) ?? this.#add(entry.id);
      if (this.#list.children[index] !== row.element) this.#list.insertBefore(row.element, this.#list.children[index]);
      row.show(entry);
    });
  }

  #add(id) {
    const row = new Row(id, (verb) => this.#ask(verb, id));
    this.#rows.set(id, row);
    return row;
  }

  #remove(id) {
    this.#rows.get(id).element.remove();
    this.#rows.delete(id);
  }
}

class Row {
  #state = make("span.state");
  #meter = make("div.meter", make("i"), make("i.waiting"));
  #busy = make("b");
  #more = make("span.more");
  #why = make("span.why");
  #buttons = new Map();
  #id;

  constructor(id, ask) {
    this.#id = id;
    attribute(this.#meter, "role", "meter");
    attribute(this.#meter, "aria-label", `${id} busy`);
    attribute(this.#meter, "aria-valuemin", 0);
    attribute(this.#meter, "aria-valuemax", 100);
    const actions = make("span.actions");
    this.element = make("li", make("span.name", id), this.#state, this.#meter, this.#busy, this.#more, actions, this.#why);
    if (!id.startsWith("slot")) return;
    for (const [verb, name] of Object.entries(NAMES)) {
      const button = make("button.small", name);
      button.type = "button";
      button.hidden = true;
      attribute(button, "aria-label", `${name} ${id}`);
      button.addEventListener("click", () => ask(verb));
      this.#buttons.set(verb, button);
      actions.append(button);
    }
  }

  show({ state, busy, core_wait, done_per_s, pss_bytes, device, why }) {
    write(this.#state, state);
    attribute(this.#state, "data-state", state);
    attribute(this.element, "data-state", state);
    const waiting = Math.min(busy ?? 0, core_wait ?? 0);
    share(this.#meter.firstChild, (busy ?? 0) - waiting);
    share(this.#meter.lastChild, waiting);
    attribute(this.#meter, "aria-valuenow", Math.round(100 * (busy ?? 0)));
    const told = waiting >= 0.01 ? `${percent(busy)}, of which ${percent(waiting)} waiting for a core` : percent(busy);
    attribute(this.#meter, "aria-valuetext", told);
    attribute(this.#meter, "title", told);
    write(this.#busy, busy == null ? "–" : `${Math.round(100 * busy)} %`);
    const parts = [done_per_s == null || this.#id === "gateway" ? null : `${rate(done_per_s)}/s`, pss_bytes ? bytes(pss_bytes) : null];
    write(this.#more, parts.filter(Boolean).join(" · "));
    attribute(this.#more, "title", device ?? "");
    write(this.#why, why ?? "");
    const allowed = VERBS[state] ?? [];
    for (const [verb, button] of this.#buttons) button.hidden = !allowed.includes(verb);
  }
}
