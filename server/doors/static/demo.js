// The demo page: pictures from the sample or the camera go to the server, and landmarks are drawn over them.

import { Client, landmarksOf } from "../sdk/framelane.js";
import { Camera } from "./camera.js";
import { Encoder } from "./encoder.js";
import { Meters } from "./meters.js";
import { Mood } from "./mood.js";
import { Overlay } from "./overlay.js";
import { Sample } from "./sample.js";
import { View } from "./view.js";
import * as words from "./words.js";

const REFRESH_MS = 250;
const FIRST = "first landmarks"; // a mark on the browser's own timeline
const here = (file) => new URL(file, import.meta.url);
const find = (id) => document.getElementById(id);

class Demo {
  #view = new View();
  #meters = new Meters();
  #mood = new Mood();
  #encoder = new Encoder(here("encode-worker.js"));
  #overlay = new Overlay(find("overlay"));
  #camera = new Camera(find("camera"));
  #sample = new Sample(find("sample"), here("sample.webp"), {
    still: matchMedia("(prefers-reduced-motion: reduce)").matches,
  });
  #source = this.#sample;
  #asking = false;
  #paused = false;
  #client = null;
  #timer = 0;

  run() {
    this.#connect();
    this.#show(this.#sample);
    find("use-camera").addEventListener("click", () => this.#toggleCamera());
    find("pause").addEventListener("click", () => this.#pause(!this.#paused));
    find("mirror").addEventListener("click", () =>
      this.#mirror(find("mirror").getAttribute("aria-pressed") !== "true"),
    );
    find("reconnect").addEventListener("click", () => this.#client.connect());
    find("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#connect(find("token").value);
    });
    this.#timer = setInterval(() => this.#refresh(), REFRESH_MS);
  }

  /** Leave nothing on: no camera, no connection. */
  stop() {
    clearInterval(this.#timer);
    this.#source.stop();
    this.#camera.stop();
    this.#client.close();
  }

  #connect(token) {
    this.#client?.close();
    const client = (this.#client = new Client(undefined, { token }));
    client.on("state", (situation) => this.#situation(situation));
    client.on("result", (result) => this.#result(result));
    client.connect();
  }

  #situation({ state, reason }) {
    if (state === "live") {
      this.#mood.begin(performance.now());
      this.#about();
    }
    if (state === "backoff" || state === "closed") this.#overlay.clear();
    find("token-form").hidden = !(state === "closed" && reason === "unauthorized");
    find("reconnect").hidden = !(state === "closed" && reason !== "unauthorized");
    this.#refresh();
  }

  async #about() {
    const answer = await fetch(here("../v1/status")).catch(() => null);
    if (answer?.ok) this.#view.about(await answer.json());
  }

  #show(source) {
    this.#source.stop();
    this.#source = source;
    const camera = source === this.#camera;
    find("camera").hidden = !camera;
    find("sample").hidden = camera;
    find("use-camera").textContent = camera ? "Stop camera" : "Use my camera";
    this.#overlay.clear();
    this.#mirror(camera);
    this.#pause(false);
  }

  async #toggleCamera() {
    if (this.#source === this.#camera) {
      this.#show(this.#sample);
      return;
    }
    if (this.#asking) return;
    this.#asking = true;
    this.#view.notice(words.camera("asking"));
    try {
      await this.#camera.open(() => this.#cameraEnded());
      this.#view.notice(null);
      this.#show(this.#camera);
    } catch (error) {
      this.#view.notice(words.camera(error.name));
    }
    this.#asking = false;
  }

  #cameraEnded() {
    this.#view.notice(words.camera("ended"));
    if (this.#source === this.#camera) this.#show(this.#sample);
  }

  #pause(paused) {
    this.#paused = paused;
    find("pause").setAttribute("aria-pressed", paused);
    this.#source.hold();
    if (paused) this.#overlay.clear();
    else this.#source.start((source) => this.#picture(source));
    this.#mood.begin(performance.now());
    this.#refresh();
  }

  #mirror(on) {
    find("mirror").setAttribute("aria-pressed", on);
    find("mirrored").classList.toggle("on", on);
  }

  /** A new picture is on the screen: send it, if one may be sent now. */
  async #picture(source) {
    fitStage(source);
    if (this.#paused || this.#encoder.busy || !this.#client.hasRoom || !source.width) return;
    const client = this.#client;
    try {
      const { bytes, width, height } = await this.#encoder.encode(source);
      client.send(bytes, { source, width, height });
    } catch (error) {
      console.warn("a picture was not sent:", error.message); // the next one comes in a moment
    }
  }

  #result(result) {
    const { source, width, height } = result.context;
    const now = performance.now();
    this.#mood.answered(now, result.faces);
    this.#meters.answered(now, result);
    if (source !== this.#source || this.#paused) return;
    this.#view.answer(result.faces ? null : { ...result, context: undefined });
    if (!result.faces) return;
    this.#overlay.draw(result.faces.map(landmarksOf), width, height);
    if (result.faces.length && !performance.getEntriesByName(FIRST).length) performance.mark(FIRST);
  }

  #refresh() {
    const now = performance.now();
    const reading = this.#paused ? null : this.#meters.read(now);
    this.#view.figures(reading);
    this.#view.drops(this.#client.counts);
    this.#view.label(this.#paused ? "Paused" : this.#source === this.#camera ? "Your camera" : "Sample");
    const { situation, interval } = this.#client;
    const told = { situation, interval, online: navigator.onLine, paused: this.#paused, source: this.#source.name };
    this.#view.status(...this.#mood.sentence(now, told));
  }
}

/** The stage has the picture's shape, so that nothing is cut off and landmarks lie where they belong. */
function fitStage({ width, height }) {
  const ratio = (width / height).toFixed(4);
  const { style } = find("stage");
  if (width && style.getPropertyValue("--ratio") !== ratio) style.setProperty("--ratio", ratio);
}

const demo = new Demo();
demo.run();
window.addEventListener("pagehide", () => demo.stop());
window.addEventListener("pageshow", ({ persisted }) => persisted && location.reload());
