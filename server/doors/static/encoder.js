// Pictures of a video or canvas as JPEG bytes, at most SIDE pixels on their longer side. JPEG rather than WebP:
// browsers encode it several times faster, and so does the server decode it. One picture is in work at a time.

const SIDE = 640;
const FORMAT = { type: "image/jpeg", quality: 0.8 };

export class Encoder {
  #worker = null;
  #canvas = null;
  busy = false;

  constructor(workerUrl) {
    if (typeof OffscreenCanvas === "undefined") return;
    this.#worker = new Worker(workerUrl);
    this.#worker.onerror = () => this.#dismiss();
  }

  /** Encode what `source` shows now: `{bytes, width, height}`, the size being that of the encoded picture. */
  async encode(source) {
    const scale = Math.min(1, SIDE / Math.max(source.width, source.height));
    const width = Math.round(source.width * scale);
    const height = Math.round(source.height * scale);
    this.busy = true;
    try {
      const bytes = this.#worker
        ? await this.#inWorker(source, width, height)
        : await this.#here(source, width, height);
      return { bytes, width, height };
    } finally {
      this.busy = false;
    }
  }

  async #inWorker(source, width, height) {
    const bitmap = await createImageBitmap(source.element, { resizeWidth: width, resizeHeight: height });
    return new Promise((resolve, reject) => {
      const fail = (message) => {
        this.#dismiss();
        reject(new Error(message));
      };
      this.#worker.onerror = () => fail("the encoder's worker failed");
      this.#worker.onmessage = ({ data }) => (data.error ? fail(data.error) : resolve(data.bytes));
      this.#worker.postMessage({ bitmap, ...FORMAT }, [bitmap]);
    });
  }

  /** Some browsers have no 2D canvas in workers: from now on the page encodes by itself. */
  #dismiss() {
    this.#worker?.terminate();
    this.#worker = null;
  }

  async #here(source, width, height) {
    this.#canvas ??= document.createElement("canvas");
    Object.assign(this.#canvas, { width, height });
    this.#canvas.getContext("2d").drawImage(source.element, 0, 0, width, height);
    const blob = await new Promise((resolve) => this.#canvas.toBlob(resolve, FORMAT.type, FORMAT.quality));
    return blob.arrayBuffer();
  }
}
