// A portrait that moves like a person before a camera: the source of pictures until there is a camera.

const WIDTH = 960;
const HEIGHT = 720;
const INTERVAL_MS = 1000 / 30;
const CENTRE = [250, 205]; // of the picture, in its pixels: the face a little left, the shuttle beside it

export class Sample {
  name = "sample";
  width = WIDTH;
  height = HEIGHT;
  #picture = new Image();
  #context;
  #handle = 0;
  #still;

  /** @param {HTMLCanvasElement} element */
  constructor(element, url, { still = false } = {}) {
    this.element = element;
    element.width = WIDTH;
    element.height = HEIGHT;
    this.#context = element.getContext("2d", { alpha: false });
    this.#picture.src = url;
    this.#still = still;
  }

  /** Call `onPicture` for each picture that is drawn. */
  async start(onPicture) {
    this.hold();
    const mine = (this.#handle = requestAnimationFrame(() => {}));
    await this.#picture.decode();
    if (this.#handle !== mine) return;
    let due = 0;
    const step = (now) => {
      this.#handle = requestAnimationFrame(step);
      if (now < due) return;
      due = Math.max(due + INTERVAL_MS, now);
      this.#draw(this.#still ? 0 : now / 1000);
      onPicture(this);
    };
    step(performance.now());
  }

  /** Stand still for a while. */
  hold() {
    cancelAnimationFrame(this.#handle);
    this.#handle = 0;
  }

  stop() {
    this.hold();
  }

  /** Slow waves whose periods do not match, so that the path does not visibly repeat. */
  #draw(t) {
    const zoom = (WIDTH / 512) * (1.38 + 0.12 * Math.sin(t * 0.53));
    const x = CENTRE[0] + 17 * Math.sin(t * 0.9) + 5 * Math.sin(t * 2.3);
    const y = CENTRE[1] + 9 * Math.sin(t * 0.71 + 1) + 3 * Math.sin(t * 1.9);
    const roll = 0.06 * Math.sin(t * 0.62);
    const context = this.#context;
    context.setTransform(1, 0, 0, 1, WIDTH / 2, HEIGHT / 2);
    context.rotate(roll);
    context.scale(zoom, zoom);
    context.imageSmoothingQuality = "high";
    context.drawImage(this.#picture, -x, -y);
  }
}
