package op

import "reflect"

// filler returns a function that replaces nil lists and maps of an output with empty ones, so
// that clients can iterate over them. It copies data that the output shares with the service,
// because outputs of concurrent calls may share lists. It is nil if the type has no lists or maps.
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
				if v.IsNil() {
					return
				}
				own := reflect.New(v.Type().Elem())
				own.Elem().Set(v.Elem())
				elem(own.Elem())
				v.Set(own)
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
		if elem == nil {
			return
		}
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		for i := range own.Len() {
			elem(own.Index(i))
		}
		v.Set(own)
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

// Empty returns the zero value of the output, without nil lists and maps.
func (o Op) Empty() any {
	v := reflect.New(o.Out().rtype).Elem()
	if fill := o.Out().filler(); fill != nil {
		fill(v)
	}
	return v.Interface()
}
