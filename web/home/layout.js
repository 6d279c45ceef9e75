// Layout of panes: rows of panes, where each row and each pane has a weight.

/** @typedef {{ id: string, weight: number }} Cell */
/** @typedef {{ weight: number, cells: Cell[] }} Row */
/** @typedef {{ left: number, top: number, width: number, height: number }} Box in percent */

export const kinds = ["grid", "columns", "rows", "single"];

/** arrange assigns panes to rows. @param {string} kind @param {string[]} ids @returns {Row[]} */
export function arrange(kind, ids) {
  const cells = ids.map((id) => ({ id, weight: 1 }));
  if (cells.length === 0) return [];
  if (kind === "columns" || kind === "single") return [{ weight: 1, cells }];
  if (kind === "rows") return cells.map((cell) => ({ weight: 1, cells: [cell] }));
  const across = Math.ceil(Math.sqrt(cells.length));
  const rows = [];
  for (let i = 0; i < cells.length; i += across) rows.push({ weight: 1, cells: cells.slice(i, i + across) });
  return rows;
}

/** place computes the boxes of the panes and of the handles between them. @param {Row[]} rows */
export function place(rows) {
  /** @type {Record<string, Box>} */
  const boxes = {};
  /** @type {{ axis: "x" | "y", row: number, cell: number, box: Box, at: number }[]} */
  const handles = [];
  const all = rows.reduce((sum, row) => sum + row.weight, 0);
  let top = 0;
  rows.forEach((row, r) => {
    const height = (100 * row.weight) / all;
    const sum = row.cells.reduce((n, cell) => n + cell.weight, 0);
    let left = 0;
    row.cells.forEach((cell, c) => {
      const width = (100 * cell.weight) / sum;
      boxes[cell.id] = { left, top, width, height };
      left += width;
      if (c < row.cells.length - 1) handles.push({ axis: "x", row: r, cell: c, at: left, box: { left, top, width: 0, height } });
    });
    top += height;
    if (r < rows.length - 1) handles.push({ axis: "y", row: r, cell: -1, at: top, box: { left: 0, top, width: 100, height: 0 } });
  });
  return { boxes, handles };
}

/**
 * resize moves a handle by a fraction of the stage. Both neighbours keep at least a tenth.
 * @param {Row[]} rows @param {{ axis: "x" | "y", row: number, cell: number }} handle @param {number} part
 */
export function resize(rows, handle, part) {
  /** @param {{ weight: number }[]} list @param {number} i */
  const shift = (list, i) => {
    const sum = list.reduce((n, one) => n + one.weight, 0);
    const both = list[i].weight + list[i + 1].weight;
    const least = Math.min(sum / 10, both / 2);
    const first = Math.max(least, Math.min(both - least, list[i].weight + part * sum));
    return list.map((one, n) => (n === i ? { ...one, weight: first } : n === i + 1 ? { ...one, weight: both - first } : one));
  };
  if (handle.axis === "y") return /** @type {Row[]} */ (shift(rows, handle.row));
  return rows.map((row, r) => (r === handle.row ? { ...row, cells: /** @type {Cell[]} */ (shift(row.cells, handle.cell)) } : row));
}

/** isSound reports whether a stored layout is valid. @param {any} rows @param {string[]} ids @returns {rows is Row[]} */
export function isSound(rows, ids) {
  if (!Array.isArray(rows)) return false;
  const seen = rows.flatMap((row) => (Array.isArray(row?.cells) && row.weight > 0 ? row.cells : [null]));
  return seen.every((cell) => cell && ids.includes(cell.id) && cell.weight > 0) && new Set(seen.map((cell) => cell.id)).size === ids.length && seen.length === ids.length;
}
