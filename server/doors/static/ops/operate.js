// Operators' verbs. The token stays in this tab (sessionStorage) and travels in a header, never in an address.

import { find, write } from "./dom.js";

const KEY = "framelane admin token";
const CONSEQUENCES = {
  promote: "It becomes active. Where as many are active as may be, another one steps back for it.",
  drain: "It finishes what it has and is not used until it is promoted again.",
  restart: "It gets a new process; an active one finishes what it has first.",
};
const REPLICA = "Clients are told to go elsewhere, frames that were taken are finished, and then this server ends.";
const capital = (text) => text[0].toUpperCase() + text.slice(1);

export class Operate {
  #url;
  #asked = null;

  /** `url(path)` gives the address of an endpoint. */
  constructor(url) {
    this.#url = url;
    find("token-form").addEventListener("submit", (event) => this.#unlock(event));
    find("lock").addEventListener("click", () => this.#lock("Locked."));
    find("drain").addEventListener("click", () => this.ask("drain", null));
    find("ask-cancel").addEventListener("click", () => find("ask").close());
    find("ask-form").addEventListener("submit", (event) => this.#confirmed(event));
    this.#show();
  }

  /** Ask for the reason, then do it; `id` is a slot's, or null for the whole replica. */
  ask(verb, id) {
    this.#asked = { verb, id };
    write(find("ask-title"), `${capital(verb)} ${id ?? "this replica"}?`);
    write(find("ask-text"), id ? CONSEQUENCES[verb] : REPLICA);
    write(find("ask-confirm"), capital(verb));
    find("why").value = "";
    find("ask").showModal();
    find("why").focus();
  }

  #unlock(event) {
    event.preventDefault();
    sessionStorage.setItem(KEY, find("token").value.trim());
    find("token").value = "";
    write(find("said"), "Unlocked. The server checks the token with the first verb.");
    this.#show();
    find("drain").focus();
  }

  #lock(text) {
    sessionStorage.removeItem(KEY);
    write(find("said"), text);
    this.#show();
  }

  #show() {
    const unlocked = sessionStorage.getItem(KEY) !== null;
    find("token-form").hidden = unlocked;
    find("unlocked").hidden = !unlocked;
    document.body.classList.toggle("operator", unlocked);
  }

  async #confirmed(event) {
    event.preventDefault();
    const { verb, id } = this.#asked;
    find("ask").close();
    const path = id ? `v1/slots/${id}/${verb}` : "v1/drain";
    const answer = await fetch(this.#url(path), {
      method: "POST",
      headers: { authorization: `Bearer ${sessionStorage.getItem(KEY)}`, "content-type": "application/json" },
      body: JSON.stringify({ why: find("why").value }),
    }).catch(() => null);
    if (answer?.ok) {
      write(find("said"), `Done: ${verb} ${id ?? "this replica"}.`);
      return;
    }
    const { message } = (await answer?.json().catch(() => null)) ?? {};
    const text = `Refused: ${message ?? "the server did not answer"}.`;
    if (answer?.status === 401 || answer?.status === 403) this.#lock(text);
    else write(find("said"), text);
  }
}
