// The last quarter of an hour as this page knows it: what the server keeps, and what was seen before the server was restarted.
// Pure: times are seconds since 1970.

const SPAN_S = 900;
const LEAST_SPAN_S = 120;
const GAP = 2.5; // steps without a row: the line is broken

export class History {
  #rows = [];
  #step = 5;

  /** Everything that the server has; older rows stay, since a new server does not know them. */
  merge({ step_s, columns }) {
    this.#step = step_s;
    const rows = columns.at.map((_, i) => Object.fromEntries(Object.keys(columns).map((name) => [name, columns[name][i]])));
    const first = rows[0]?.at ?? Infinity;
    this.#rows = [...this.#rows.filter(({ at }) => at < first - step_s / 2), ...rows];
  }

  add(row) {
    if (!(row.at <= this.last?.at)) this.#rows.push(row);
    this.#rows = this.#rows.filter(({ at }) => at > row.at - SPAN_S - this.#step);
  }

  get last() {
    return this.#rows.at(-1);
  }

  /** Where charts begin: a quarter of an hour before `now`; later where less is known, so that little is not squeezed. */
  begin(now) {
    return Math.max(now - SPAN_S, Math.min(now - LEAST_SPAN_S, this.#rows[0]?.at ?? now));
  }

  /** `[times, values of the first name, …]`, as uPlot takes them; a gap is a row of nulls. */
  columns(names) {
    const data = [[], ...names.map(() => [])];
    let before = Infinity;
    for (const row of this.#rows) {
      if (row.at - before > GAP * this.#step) push(data, before + this.#step, () => null);
      push(data, row.at, (i) => row[names[i]] ?? null);
      before = row.at;
    }
    return data;
  }

  /** What limited the server, as `[{limit, from, to}]`; `limit` is null where nothing is known. */
  runs() {
    const runs = [];
    for (const { at, limit } of this.#rows) {
      const from = at - this.#step;
      const last = runs.at(-1);
      if (last && from - last.to > (GAP - 1) * this.#step) runs.push({ limit: null, from: last.to, to: from });
      if (runs.at(-1)?.limit === limit) runs.at(-1).to = at;
      else runs.push({ limit, from: runs.at(-1)?.to ?? from, to: at });
    }
    return runs;
  }
}

function push(data, at, value) {
  data[0].push(at);
  data.slice(1).forEach((column, i) => column.push(value(i)));
}
