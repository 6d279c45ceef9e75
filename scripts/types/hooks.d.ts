// Declarations of the parts of Preact's hooks that our pages use, for the type checker.
import type { Ref } from "./preact.js";
export function useCallback<F extends (...args: any[]) => any>(fn: F, deps: unknown[]): F;
export function useContext(context: any): any;
export function useEffect(fn: () => void | (() => void), deps?: unknown[]): void;
export function useLayoutEffect(fn: () => void | (() => void), deps?: unknown[]): void;
export function useMemo<T>(make: () => T, deps: unknown[]): T;
export function useRef<T>(value: T): Ref<T>;
export function useState<T>(value: T | (() => T)): [T, (next: T | ((old: T) => T)) => void];
