package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/tag"
)

// raw is the value in one layer. Exactly one of its fields is set.
type raw struct {
	text  []string          // unparsed; several if a flag was repeated
	items []string          // a list
	pairs map[string]string // a mapping
}

// parse converts raw to the field's Go type. Its errors name the allowed values and never
// quote a secret.
func (f Field) parse(r raw) (reflect.Value, error) {
	switch f.Type {
	case Strings, Ints:
		return f.parseList(r)
	case Map:
		return f.parseMap(r)
	}
	if len(r.text) == 0 {
		return reflect.Value{}, fmt.Errorf("must be a single value: %s", f.allowed())
	}
	s := strings.TrimSpace(r.text[len(r.text)-1])
	if strings.ContainsRune(s, 0) {
		return reflect.Value{}, errors.New("must not contain a NUL character")
	}
	switch f.Type {
	case String:
		if len(f.Enum) > 0 && !slices.Contains(f.Enum, s) {
			return reflect.Value{}, f.reject(s)
		}
		return reflect.ValueOf(s), nil
	case Bool:
		b, ok := tag.ParseBool(s)
		if !ok {
			return reflect.Value{}, f.reject(s)
		}
		return reflect.ValueOf(b), nil
	default:
		n, err := f.parseNumber(s)
		if err != nil || !f.allows(n) {
			return reflect.Value{}, f.reject(s)
		}
		return n, nil
	}
}

func (f Field) parseList(r raw) (reflect.Value, error) {
	if r.pairs != nil {
		return reflect.Value{}, fmt.Errorf("must be a list: %s", f.allowed())
	}
	items := r.items
	for _, t := range r.text {
		words, err := f.split(t)
		if err != nil {
			return reflect.Value{}, err
		}
		items = append(items, words...)
	}
	if f.Type == Strings {
		out := make([]string, 0, len(items))
		for _, s := range items {
			if s = strings.TrimSpace(s); s == "" {
				continue
			}
			if strings.ContainsRune(s, 0) || len(f.Enum) > 0 && !slices.Contains(f.Enum, s) {
				return reflect.Value{}, f.reject(s)
			}
			out = append(out, s)
		}
		return reflect.ValueOf(out), nil
	}
	out := make([]int, 0, len(items))
	for _, s := range items {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		n, err := f.parseNumber(s)
		if err != nil || !f.allows(n) {
			return reflect.Value{}, f.reject(s)
		}
		out = append(out, int(n.Int()))
	}
	return reflect.ValueOf(out), nil
}

func (f Field) parseMap(r raw) (reflect.Value, error) {
	out := make(map[string]string)
	for k, v := range r.pairs {
		out[k] = v
	}
	items := r.items
	for _, t := range r.text {
		list, err := f.split(t)
		if err != nil {
			return reflect.Value{}, err
		}
		items = append(items, list...)
	}
	for _, item := range items {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		k, v, ok := strings.Cut(item, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return reflect.Value{}, f.reject(item)
		}
		out[k] = strings.TrimSpace(v)
	}
	return reflect.ValueOf(out), nil
}

func (f Field) split(text string) ([]string, error) {
	switch {
	case f.words:
		words, ok := splitWords(text)
		if !ok {
			return nil, errors.New("has an unclosed quote")
		}
		return words, nil
	case f.Type == Ints:
		return strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(", \t\r\n", c) }), nil
	}
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		var list []string
		if json.Unmarshal([]byte(text), &list) == nil { // otherwise it is an address such as [::1]:80
			return list, nil
		}
	}
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' || c == '\n' }), nil
}

// splitWords splits at white space. Single and double quotes group a word; a
// backslash outside single quotes escapes the next character. It returns false if a
// quote is not closed.
func splitWords(text string) ([]string, bool) {
	var out []string
	var b strings.Builder
	var quote rune
	inside, escaped := false, false
	for _, c := range text {
		switch {
		case escaped:
			b.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inside = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inside = c, true
		case quote == 0 && strings.ContainsRune(" \t\r\n", c):
			if inside {
				out = append(out, b.String())
				b.Reset()
			}
			inside = false
		default:
			b.WriteRune(c)
			inside = true
		}
	}
	if inside {
		out = append(out, b.String())
	}
	return out, quote == 0 && !escaped
}

// parseNumber parses a value of the field's number type; for a list, of its elements.
func (f Field) parseNumber(s string) (reflect.Value, error) {
	switch f.Type {
	case Int, Ints:
		n, err := strconv.Atoi(s)
		return reflect.ValueOf(n), err
	case Float:
		n, err := strconv.ParseFloat(s, 64)
		if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
			err = errors.New("not finite")
		}
		return reflect.ValueOf(n), err
	case Duration:
		d, err := parseDuration(s)
		return reflect.ValueOf(d), err
	case Size:
		n, err := parseBytes(s)
		return reflect.ValueOf(n), err
	}
	return reflect.Value{}, errors.New("not a number type")
}

// allows reports whether a parsed number is within the limits.
func (f Field) allows(n reflect.Value) bool {
	key, _ := f.limits.Violated(toFloat(n))
	return key == ""
}

func toFloat(n reflect.Value) float64 {
	switch {
	case n.CanInt():
		return float64(n.Int())
	case n.CanFloat():
		return n.Float()
	}
	return 0
}

// parseDuration parses Go's notation, or a number of seconds, as in variables that end in
// _SECONDS.
func parseDuration(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 0 || n > math.MaxInt64/int64(time.Second) {
			return 0, errors.New("out of range")
		}
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = errors.New("negative")
	}
	return d, err
}

func parseBytes(s string) (Bytes, error) {
	digits := strings.TrimRight(s, "BKMGTkibe ")
	unit, known := map[string]int64{
		"": 1, "B": 1,
		"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}[strings.TrimSpace(s[len(digits):])]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("not a size")
	}
	return Bytes(n * unit), nil
}

// String formats the size with the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range []struct {
		size Bytes
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

func (f Field) reject(given string) error {
	if f.Secret || f.url {
		return fmt.Errorf("is not %s", f.allowed())
	}
	return fmt.Errorf("%s is not %s", quote(given), f.allowed())
}

// allowed describes the values that the field accepts.
func (f Field) allowed() string {
	var s string
	switch f.Type {
	case String:
		s = "a string"
	case Bool:
		s = "true or false (also yes/no, on/off, 1/0)"
	case Int:
		s = "a whole number"
	case Float:
		s = "a number"
	case Duration:
		s = "a duration such as 30s, 5m or 1h30m (a bare number means seconds)"
	case Size:
		s = "a size such as 512KiB, 64MiB or 1GB (a bare number means bytes)"
	case Strings:
		s = "a list separated by commas or newlines"
		if f.words {
			s = "words separated by spaces"
		}
	case Ints:
		s = "a list of whole numbers separated by commas"
	case Map:
		s = "name=value pairs separated by commas"
	}
	if len(f.Enum) > 0 {
		s = "one of " + strings.Join(f.Enum, ", ")
	}
	switch {
	case f.Min != "" && f.Max != "":
		s += " from " + f.Min + " to " + f.Max
	case f.Min != "":
		s += " of at least " + f.Min
	case f.Max != "":
		s += " of at most " + f.Max
	}
	return s
}

// hidden replaces a secret that is set. An empty secret is shown as empty.
const hidden = "•••"

// show formats a value for people.
func (f Field) show(v reflect.Value) string {
	s := plain(v)
	switch {
	case s == "":
		return ""
	case f.Secret:
		return hidden
	case f.url:
		return withoutUser(s)
	}
	return s
}

func plain(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []string:
		return strings.Join(x, ",")
	case []int:
		parts := make([]string, len(x))
		for i, n := range x {
			parts[i] = strconv.Itoa(n)
		}
		return strings.Join(parts, ",")
	case map[string]string:
		parts := make([]string, 0, len(x))
		for _, k := range sortedKeys(x) {
			parts = append(parts, k+"="+x[k])
		}
		return strings.Join(parts, ",")
	default:
		return fmt.Sprint(x)
	}
}

// withoutUser hides the user information of a URL: everything between an optional scheme and
// the last @, even if the URL is invalid.
func withoutUser(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	start := 0
	if i := strings.Index(s, "://"); i >= 0 && i < at {
		start = i + len("://")
	}
	return s[:start] + hidden + s[at:]
}

// quote formats a given value for an error: quoted, and truncated if it is long.
func quote(s string) string {
	const maxLength = 80
	if len(s) > maxLength {
		cut := maxLength
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strconv.Quote(s)
}

// isURL reports whether s is an absolute URL with one of the schemes.
func isURL(s string, schemes ...string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains(schemes, u.Scheme) && (u.Host != "" || u.Opaque != "" || u.Path != "")
}
