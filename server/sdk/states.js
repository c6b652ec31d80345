// The client's states: the table in server/protocol.py, which client.py follows too. A test holds all three equal.

const OVER = { refused_for_now: "backoff", refused: "closed", lost: "backoff" };

/** state → event → next state. `close`, the application's own, ends in "closed" from anywhere. */
export const TABLE = Object.freeze({
  idle: { connect: "connecting" },
  connecting: { opened: "greeting", lost: "backoff" },
  greeting: { ready: "live", waiting: "waiting", refused_for_now: "backoff", refused: "closed", lost: "backoff" },
  waiting: { waiting: "waiting", ready: "live", expires: "waiting", drain: "draining", ...OVER },
  live: { answered: "live", pace: "live", expires: "live", drain: "draining", ...OVER },
  draining: { answered: "draining", all_answered: "backoff", ...OVER },
  backoff: { elapsed: "connecting" },
  closed: { connect: "connecting" },
});

/** The state after `event`; throws where the table has none. */
export function next(state, event) {
  const target = event === "close" ? "closed" : TABLE[state][event];
  if (target === undefined) throw new Error(`a client that is ${state} knows no ${event}`);
  return target;
}
