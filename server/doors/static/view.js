// Everything the page shows beside the picture. It writes to the document only what has changed.

import * as words from "./words.js";

const find = (id) => document.getElementById(id);
const decimals = (value) => (value < 9.95 ? value.toFixed(1) : Math.round(value).toString());

export class View {
  #parts = [...find("parts").querySelectorAll("dd")];
  #bars = [...find("bar").children];

  /** One sentence about the connection; `tone` colours the light: "good", "busy" or "bad". */
  status(text, tone) {
    write(find("status"), text);
    find("light").dataset.tone = tone;
  }

  /** What `Meters.read` gave. */
  figures(reading) {
    write(find("fps"), reading ? Math.round(reading.fps).toString() : "–");
    write(find("latency"), reading ? decimals(reading.roundTrip) : "–");
    const sum = reading?.parts.reduce((a, b) => a + b) || 1;
    this.#parts.forEach((element, i) => write(element, reading ? `${decimals(reading.parts[i])} ms` : "–"));
    this.#bars.forEach((bar, i) => (bar.style.flexGrow = reading ? reading.parts[i] / sum : 0));
  }

  /** `counts` of the client: drops by reason, in words. */
  drops({ dropped, lost }) {
    const entries = Object.entries({ ...dropped, lost }).filter(([, count]) => count > 0);
    find("no-drops").hidden = entries.length > 0;
    find("drops").hidden = entries.length === 0;
    const text = JSON.stringify(entries);
    if (find("drops").dataset.shown === text) return;
    find("drops").dataset.shown = text;
    find("drops").replaceChildren(...entries.map(([reason, count]) => row(words.drop(reason), count)));
  }

  /** A title and what to do, or nothing. */
  notice(lines) {
    const notice = find("notice");
    notice.hidden = !lines;
    if (!lines) return;
    write(find("notice-title"), lines[0]);
    write(find("notice-text"), lines[1]);
  }

  label(text) {
    write(find("label"), text);
  }

  /** The answer of a pipeline that finds no faces, as text. */
  answer(result) {
    find("answer").hidden = !result;
    if (result)
      write(
        find("answer-text"),
        JSON.stringify(result, (_, v) => (v instanceof ArrayBuffer ? `${v.byteLength} bytes` : v), 2),
      );
  }

  /** What /v1/status says of the server. */
  about({ version, device }) {
    find("simulated").hidden = !device.simulated;
    const where = device.simulated ? `SIMULATED models (${device.used})` : `models on ${device.used}`;
    write(find("about"), `Framelane ${version} · ${where}`);
  }
}

function row(term, value) {
  const [div, dt, dd] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
  dt.textContent = term;
  dd.textContent = value;
  div.append(dt, dd);
  return div;
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
