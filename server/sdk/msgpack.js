// The part of msgpack that Framelane speaks. Own code instead of a library: the common ones are 25 KB and more, and
// accept what no server of ours sends (dates, extensions, keys of any type). Strict: what is cut short, too deep,
// trailing or an extension type throws. Integers are those that JavaScript holds exactly.

const MAX_DEPTH = 32;
const utf8 = new TextEncoder();
const text = new TextDecoder("utf-8", { fatal: true });

/** Encode null, booleans, numbers, text, bytes (ArrayBuffer or a view), arrays and plain objects. */
export function encode(value) {
  const writer = new Writer();
  writer.value(value, 0);
  return writer.bytes.subarray(0, writer.length);
}

/** Decode exactly one value. Bytes come as an ArrayBuffer of their own. */
export function decode(bytes) {
  const reader = new Reader(bytes instanceof Uint8Array ? bytes : new Uint8Array(bytes));
  const value = reader.value(0);
  if (reader.at !== reader.bytes.length) throw new RangeError("msgpack: bytes after the value");
  return value;
}

class Writer {
  bytes = new Uint8Array(256);
  length = 0;
  #view = new DataView(this.bytes.buffer);

  value(value, depth) {
    if (depth > MAX_DEPTH) throw new RangeError("msgpack: too deep");
    if (value === null || value === undefined) this.#byte(0xc0);
    else if (typeof value === "boolean") this.#byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "number") this.#number(value);
    else if (typeof value === "string") this.#text(utf8.encode(value));
    else if (value instanceof ArrayBuffer) this.#binary(new Uint8Array(value));
    else if (ArrayBuffer.isView(value)) this.#binary(new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
    else if (Array.isArray(value)) this.#array(value, depth);
    else if (typeof value === "object") this.#map(value, depth);
    else throw new TypeError(`msgpack: cannot encode a ${typeof value}`);
  }

  #number(value) {
    if (!Number.isSafeInteger(value)) this.#put(0xcb, 8, (at) => this.#view.setFloat64(at, value));
    else if (value < -0x80000000) this.#put(0xd3, 8, (at) => this.#view.setBigInt64(at, BigInt(value)));
    else if (value < -0x20) this.#put(0xd2, 4, (at) => this.#view.setInt32(at, value));
    else if (value < 0x80) this.#byte(value & 0xff);
    else if (value <= 0xffffffff) this.#put(0xce, 4, (at) => this.#view.setUint32(at, value));
    else this.#put(0xcf, 8, (at) => this.#view.setBigUint64(at, BigInt(value)));
  }

  #text(encoded) {
    if (encoded.length < 32) this.#byte(0xa0 | encoded.length);
    else this.#put(0xdb, 4, (at) => this.#view.setUint32(at, encoded.length));
    this.#raw(encoded);
  }

  #binary(bytes) {
    this.#put(0xc6, 4, (at) => this.#view.setUint32(at, bytes.length));
    this.#raw(bytes);
  }

  #array(items, depth) {
    if (items.length < 16) this.#byte(0x90 | items.length);
    else this.#put(0xdd, 4, (at) => this.#view.setUint32(at, items.length));
    for (const item of items) this.value(item, depth + 1);
  }

  #map(object, depth) {
    const entries = Object.entries(object).filter(([, value]) => value !== undefined);
    if (entries.length < 16) this.#byte(0x80 | entries.length);
    else this.#put(0xdf, 4, (at) => this.#view.setUint32(at, entries.length));
    for (const [key, value] of entries) {
      this.#text(utf8.encode(key));
      this.value(value, depth + 1);
    }
  }

  #byte(byte) {
    this.#room(1);
    this.bytes[this.length++] = byte;
  }

  #put(head, size, write) {
    this.#room(1 + size);
    this.bytes[this.length] = head;
    write(this.length + 1);
    this.length += 1 + size;
  }

  #raw(bytes) {
    this.#room(bytes.length);
    this.bytes.set(bytes, this.length);
    this.length += bytes.length;
  }

  #room(size) {
    if (this.length + size <= this.bytes.length) return;
    const larger = new Uint8Array(Math.max(2 * this.bytes.length, this.length + size));
    larger.set(this.bytes.subarray(0, this.length));
    this.bytes = larger;
    this.#view = new DataView(larger.buffer);
  }
}

class Reader {
  at = 0;
  #view;

  constructor(bytes) {
    this.bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  value(depth) {
    if (depth > MAX_DEPTH) throw new RangeError("msgpack: too deep");
    const head = this.#unsigned(1);
    if (head < 0x80) return head;
    if (head < 0x90) return this.#map(head & 0x0f, depth);
    if (head < 0xa0) return this.#array(head & 0x0f, depth);
    if (head < 0xc0) return this.#text(head & 0x1f);
    if (head >= 0xe0) return head - 0x100;
    return this.#tagged(head, depth);
  }

  #tagged(head, depth) {
    switch (head) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.#binary(this.#unsigned(1 << (head - 0xc4)));
      case 0xca: return this.#view.getFloat32(this.#skip(4));
      case 0xcb: return this.#view.getFloat64(this.#skip(8));
      case 0xcc: case 0xcd: case 0xce: return this.#unsigned(1 << (head - 0xcc));
      case 0xcf: return exact(this.#view.getBigUint64(this.#skip(8)));
      case 0xd0: return this.#view.getInt8(this.#skip(1));
      case 0xd1: return this.#view.getInt16(this.#skip(2));
      case 0xd2: return this.#view.getInt32(this.#skip(4));
      case 0xd3: return exact(this.#view.getBigInt64(this.#skip(8)));
      case 0xd9: case 0xda: case 0xdb: return this.#text(this.#unsigned(1 << (head - 0xd9)));
      case 0xdc: case 0xdd: return this.#array(this.#unsigned(2 << (head - 0xdc)), depth);
      case 0xde: case 0xdf: return this.#map(this.#unsigned(2 << (head - 0xde)), depth);
      default: throw new TypeError(`msgpack: type 0x${head.toString(16)} is not part of the protocol`);
    }
  }

  #unsigned(size) {
    const at = this.#skip(size);
    return size === 1 ? this.#view.getUint8(at) : size === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #text(length) {
    const at = this.#skip(length);
    return text.decode(this.bytes.subarray(at, at + length));
  }

  #binary(length) {
    const at = this.#skip(length);
    return this.bytes.slice(at, at + length).buffer;
  }

  #array(length, depth) {
    const items = [];
    for (let i = 0; i < length; i++) items.push(this.value(depth + 1));
    return items;
  }

  #map(length, depth) {
    const entries = [];
    for (let i = 0; i < length; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new TypeError("msgpack: a key is text");
      entries.push([key, this.value(depth + 1)]);
    }
    return Object.fromEntries(entries); // unlike assignment, safe for a key named __proto__
  }

  #skip(size) {
    const at = this.at;
    if (size > this.bytes.length - at) throw new RangeError("msgpack: cut short");
    this.at = at + size;
    return at;
  }
}

function exact(big) {
  const number = Number(big);
  if (!Number.isSafeInteger(number)) throw new RangeError("msgpack: an integer beyond 2^53");
  return number;
}
