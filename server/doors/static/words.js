// What the page says, in one place: connection, camera and dropped pictures in plain words.

const seconds = (ms) => {
  const whole = Math.max(1, Math.round(ms / 1000));
  return whole === 1 ? "1 second" : `${whole} seconds`;
};

const REFUSALS = {
  unauthorized: "This server asks for an access token.",
  origin: "This server does not accept pictures from a page at this address.",
  bad_request: "This server does not offer what the page needs.",
  full: "All places are taken.",
  rate_limited: "This server takes nothing from here for a moment.",
  draining: "This server is being replaced.",
  idle: "The page sent nothing for a while, and its place was given to somebody else.",
};

/** The sentence for a client's situation, while it is not live. */
export function connection({ state, reason, message, position, retry_after_ms, retry_in_ms }, online = true) {
  if (state === "waiting") {
    return `All places are taken. You are number ${position} in line; about ${seconds(retry_after_ms)} to go.`;
  }
  if (state === "draining") return "This server is being replaced. Moving to another one.";
  if (state === "backoff") {
    if (!online) return "You are offline. The page reconnects by itself when you are back.";
    return `${REFUSALS[reason] ?? "The connection was lost."} Trying again in ${seconds(retry_in_ms)}.`;
  }
  if (state === "closed")
    return [REFUSALS[reason] ?? "Not connected.", message && sentence(message)].filter(Boolean).join(" ");
  return "Connecting …";
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** The sentence while it is live. */
export function live({ paused, source, silent, noFace, fewer, faces }) {
  if (paused) return "Paused. No pictures are sent.";
  if (silent) return "No answers at the moment. The picture is live, the landmarks will be back.";
  if (fewer) return `The server is busy: ${fewer} pictures a second are sent, to keep each answer quick.`;
  if (!faces) return "Connected. This server’s pipeline draws no faces; its answers are shown as text.";
  if (noFace) return "Connected. No face in sight: look into the camera, with light from the front.";
  return source === "camera" ? "Connected. Analysing your camera." : "Connected. Analysing the sample.";
}

const DROPS = {
  superseded: "Replaced by a newer one",
  expired: "Too late to be of use",
  invalid: "Not readable as a picture",
  rate_limited: "Not taken from here for a moment",
  not_admitted: "No place on the server",
  failed: "Analysis failed",
  draining: "Server going away",
  lost: "Lost with a connection",
};

export const drop = (reason) => DROPS[reason] ?? reason;

const CAMERA = {
  asking: ["Your browser is asking", "Choose “Allow” to let this page see your camera. Nothing is stored."],
  NotAllowedError: [
    "The camera was not allowed",
    "Press the camera or lock symbol in the address bar, allow the camera for this page, and press “Use my camera” " +
      "again. If there is no such symbol, allow the browser itself in your system’s privacy settings.",
  ],
  NotFoundError: ["No camera was found", "Connect or switch on a camera, and press “Use my camera” again."],
  NotReadableError: [
    "The camera is busy",
    "Another program or tab is using it. Close that one (a video call, perhaps), and press “Use my camera” again.",
  ],
  OverconstrainedError: [
    "The camera does not fit",
    "It offers no picture that this page can use. Choose another camera in the browser’s settings.",
  ],
  SecurityError: [
    "The camera is blocked",
    "This browser or its administrator forbids cameras on this page. Try another browser.",
  ],
  insecure: [
    "The camera needs a secure address",
    "Browsers open cameras for https:// addresses and for localhost only. Open this page through one of them.",
  ],
  unsupported: ["This browser has no camera access", "Open the page in a current Chrome, Edge, Firefox or Safari."],
  ended: [
    "The camera stopped",
    "It was unplugged, or another program took it. Press “Use my camera” to start it again.",
  ],
};
CAMERA.AbortError = CAMERA.NotReadableError;
CAMERA.PermissionDeniedError = CAMERA.NotAllowedError;

/** `[title, cure]` for a camera's error, by its name. */
export const camera = (name) =>
  CAMERA[name] ?? ["The camera did not start", `The browser says “${name}”. Try once more, or another browser.`];
