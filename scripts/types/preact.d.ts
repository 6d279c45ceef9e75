// Declarations of the parts of Preact that our pages use, for the type checker.
export type Ref<T> = { current: T };
export class Component<P = any, S = any> {
  constructor(props?: P);
  props: P; state: S;
  setState(next: Partial<S>): void;
  render(props: P, state: S): any;
}
export function createContext<T>(value: T): any;
export function h(type: any, props?: any, ...children: any[]): any;
export function render(node: any, parent: Element): void;
