// The editor of scripts/editor/codemirror.js, for the type checker.
export type Editor = { text(): string; replace(text: string): void; goTo(line: number): void; focus(): void; close(): void };
export function open(options: {
  parent: HTMLElement | null; text: string; name: string; readOnly: boolean; onChange: () => void; onSave: () => void;
  cell?: { label: string; keys: Record<string, () => void> };
}): Editor;
