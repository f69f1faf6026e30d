// Requests to the server this page came from. Every failure is an error with a sentence for the user.

const TRIES = 8; // while the queue of the server is full
const IN_WORDS = {
  401: "The server requires an API key.",
  404: "The server no longer has this model. Reload the page.",
  413: "This image is too large for the server.",
  422: "The server cannot read this file as an image.",
  429: "The server is busy. Try again in a moment.",
  503: "The server is stopping or took too long. Try again in a moment.",
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let key = "";
export const useKey = (value) => { key = value; };

/** The answer's JSON. `photo` is sent as it is; `waiting(seconds)` is called before a full queue is tried again. */
export async function ask(path, { photo, query = {}, waiting = () => {} } = {}) {
  const address = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(query)) address.searchParams.set(name, value);
  for (let attempt = 1; ; attempt++) {
    const answer = await send(address, photo);
    if (answer.ok) return answer.json();
    if (answer.status !== 429 || attempt === TRIES) throw new Refused(answer.status, await reason(answer));
    const seconds = Math.min(Number(answer.headers.get("Retry-After")) || attempt, 30);
    waiting(seconds);
    await new Promise((done) => setTimeout(done, 1000 * seconds));
  }
}

async function send(address, photo) {
  const headers = key ? { "X-API-Key": key } : {};
  if (photo) headers["Content-Type"] = photo.type || "application/octet-stream";
  try {
    return await fetch(address, { method: photo ? "POST" : "GET", headers, body: photo });
  } catch {
    throw new Refused(0, photo
      ? "The image did not reach the server: the server may have stopped, the file may be too large, or it was moved."
      : "The server does not respond. Is it running?");
  }
}

async function reason(answer) {
  const said = await answer.json().catch(() => null);
  if (said?.error) return said.error[0].toUpperCase() + said.error.slice(1);
  return IN_WORDS[answer.status] ?? `The server answered with status ${answer.status}.`;
}

/** Runs tasks, a few at a time and in order: the server makes batches of what arrives together. */
export class Queue {
  #waiting = [];
  #free = 6; // as many connections as browsers open to one server

  add(task) {
    this.#waiting.push(task);
    this.#next();
  }

  async #next() {
    if (!this.#free || !this.#waiting.length) return;
    this.#free--;
    try {
      await this.#waiting.shift()();
    } finally {
      this.#free++;
      this.#next();
    }
  }
}
