// The visitor's camera as a source of pictures.

const WANTED = { facingMode: "user", width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 30 } };

export class Camera {
  name = "camera";
  #stream = null;
  #handle = 0;

  /** @param {HTMLVideoElement} element  where the picture is shown */
  constructor(element) {
    this.element = element;
  }

  get width() {
    return this.element.videoWidth;
  }

  get height() {
    return this.element.videoHeight;
  }

  /** Ask for the camera. Throws what the browser says; its `name` is explained in words.js. */
  async open(onEnded) {
    if (!window.isSecureContext) throw named("insecure");
    if (!navigator.mediaDevices?.getUserMedia) throw named("unsupported");
    const stream = await navigator.mediaDevices.getUserMedia({ video: WANTED, audio: false });
    this.#stream = stream;
    this.element.srcObject = stream;
    stream.getVideoTracks()[0].addEventListener("ended", () => {
      this.stop();
      onEnded();
    });
    try {
      await this.element.play();
    } catch (error) {
      this.stop();
      throw error;
    }
  }

  /** Call `onPicture` for each picture that the camera shows. */
  start(onPicture) {
    const next = (react) => this.element.requestVideoFrameCallback?.(react) ?? window.requestAnimationFrame(react);
    const step = () => {
      if (!this.#stream) return;
      onPicture(this);
      this.#handle = next(step);
    };
    this.#handle = next(step);
  }

  /** Call no more for a while; the camera stays on. */
  hold() {
    if (this.element.cancelVideoFrameCallback) this.element.cancelVideoFrameCallback(this.#handle);
    else cancelAnimationFrame(this.#handle);
  }

  /** Switch the camera off: its light goes out. */
  stop() {
    this.hold();
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#stream = null;
    this.element.srcObject = null;
  }
}

function named(name) {
  return Object.assign(new Error(name), { name });
}
