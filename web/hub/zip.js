// Writes ZIP archives without compression, as browsers have no function for it.

const table = Uint32Array.from({ length: 256 }, (_, n) => { let c = n; for (let i = 0; i < 8; i++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1; return c; });

/** crc returns the CRC-32 of bytes. @param {Uint8Array} data */
export function crc(data) {
  let c = ~0;
  for (const byte of data) c = table[(c ^ byte) & 255] ^ (c >>> 8);
  return ~c >>> 0;
}

/** header returns the bytes of fields, each a value and its size in bytes. @param {[number, number][]} fields */
function header(fields) {
  const view = new DataView(new ArrayBuffer(fields.reduce((sum, [, size]) => sum + size, 0)));
  let at = 0;
  for (const [value, size] of fields) {
    if (size === 2) view.setUint16(at, value, true); else view.setUint32(at, value, true);
    at += size;
  }
  return new Uint8Array(view.buffer);
}

/** zip returns an archive of files. Names are relative paths. The archive and its number of entries must fit the format: 4 GB and 65,535. @param {{ name: string, data: Uint8Array<ArrayBuffer> }[]} files @returns {Blob} */
export function zip(files) {
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const parts = [];
  /** @type {Uint8Array<ArrayBuffer>[]} */
  const directory = [];
  let at = 0;
  for (const { name, data } of files) {
    const path = new TextEncoder().encode(name);
    // Version 2.0, names in UTF-8, stored, 1 January 1980.
    /** @type {[number, number][]} */
    const common = [[20, 2], [0x800, 2], [0, 2], [0, 2], [0x21, 2], [crc(data), 4], [data.length, 4], [data.length, 4], [path.length, 2], [0, 2]];
    const local = header([[0x04034b50, 4], ...common]);
    parts.push(local, path, data);
    directory.push(header([[0x02014b50, 4], [20, 2], ...common, [0, 2], [0, 2], [0, 2], [0, 4], [at, 4]]), path);
    at += local.length + path.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = header([[0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [at, 4], [0, 2]]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}
