// Draws landmarks over the picture, in the screen's own pixels.

import { MESH, OUTLINES } from "./mesh-lines.js";

const STALE_MS = 700; // landmarks older than this would hang beside the face: they fade

export class Overlay {
  #canvas;
  #context;
  #ratio = 1;
  #timer = 0;

  constructor(canvas) {
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d");
    new ResizeObserver(([{ contentRect }]) => this.#fit(contentRect)).observe(canvas);
  }

  /** `faces`: Float32Arrays of 468 × (x, y, z) in pixels of a picture of `width` × `height`. */
  draw(faces, width, height) {
    const context = this.#context;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height);
    const [x, y] = [this.#canvas.width / width, this.#canvas.height / height];
    for (const points of faces) this.#face(points.map((value, i) => value * (i % 3 ? y : x)));
    this.#canvas.classList.remove("stale");
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#canvas.classList.add("stale"), STALE_MS);
  }

  clear() {
    clearTimeout(this.#timer);
    this.#canvas.classList.add("stale");
  }

  #face(points) {
    const context = this.#context;
    const unit = this.#ratio * Math.min(1, Math.max(0.6, width(points) / (240 * this.#ratio))); // finer on small faces
    context.lineJoin = context.lineCap = "round";
    context.lineWidth = 0.8 * unit;
    context.strokeStyle = "rgb(255 255 255 / 0.32)";
    this.#strokes(MESH, points);
    context.lineWidth = 1.7 * unit;
    context.strokeStyle = "rgb(112 255 208 / 0.95)";
    this.#strokes(OUTLINES, points);
    const side = 1.7 * unit;
    context.fillStyle = "rgb(255 255 255 / 0.75)";
    for (let i = 0; i < points.length; i += 3)
      context.fillRect(points[i] - side / 2, points[i + 1] - side / 2, side, side);
  }

  #strokes(paths, points) {
    const context = this.#context;
    context.beginPath();
    for (const [first, ...rest] of paths) {
      context.moveTo(points[3 * first], points[3 * first + 1]);
      for (const index of rest) context.lineTo(points[3 * index], points[3 * index + 1]);
    }
    context.stroke();
  }

  #fit({ width, height }) {
    this.#ratio = window.devicePixelRatio;
    this.#canvas.width = Math.round(width * this.#ratio);
    this.#canvas.height = Math.round(height * this.#ratio);
  }
}

/** Of a face, between the points beside its ears. */
function width(points) {
  return Math.hypot(points[3 * 454] - points[3 * 234], points[3 * 454 + 1] - points[3 * 234 + 1]);
}
