package op

import "reflect"

// filler returns a function that makes nil lists and maps empty ones, since a
// client that iterates over a list must not find null; nil when there are none.
func (t *Type) filler() func(reflect.Value) { return fillerOf(t, map[*Type]*func(reflect.Value){}) }

func fillerOf(t *Type, seen map[*Type]*func(reflect.Value)) func(reflect.Value) {
	if known, ok := seen[t]; ok {
		return func(v reflect.Value) {
			if *known != nil {
				(*known)(v)
			}
		}
	}
	slot := new(func(reflect.Value))
	seen[t] = slot
	switch t.Kind {
	case Array:
		*slot = fillArray(t, fillerOf(t.Elem, seen))
	case Map:
		*slot = func(v reflect.Value) {
			if v.IsNil() {
				v.Set(reflect.MakeMap(t.rtype))
			}
		}
	case Pointer:
		if elem := fillerOf(t.Elem, seen); elem != nil {
			*slot = func(v reflect.Value) {
				if !v.IsNil() {
					elem(v.Elem())
				}
			}
		}
	case Object:
		*slot = fillObject(t, seen)
	}
	return *slot
}

func fillArray(t *Type, elem func(reflect.Value)) func(reflect.Value) {
	return func(v reflect.Value) {
		if v.IsNil() {
			v.Set(reflect.MakeSlice(t.rtype, 0, 0))
			return
		}
		if elem != nil {
			for i := range v.Len() {
				elem(v.Index(i))
			}
		}
	}
}

func fillObject(t *Type, seen map[*Type]*func(reflect.Value)) func(reflect.Value) {
	type step struct {
		index []int
		fill  func(reflect.Value)
	}
	var steps []step
	for _, f := range t.Fields {
		if fill := fillerOf(f.Type, seen); fill != nil {
			steps = append(steps, step{f.index, fill})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return func(v reflect.Value) {
		for _, s := range steps {
			s.fill(v.FieldByIndex(s.index))
		}
	}
}
