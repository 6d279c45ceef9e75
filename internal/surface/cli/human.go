package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Size formats a number of bytes; a negative number is unknown.
func Size(n int64) string {
	if n < 0 {
		return "-"
	}
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n), "KMGTPE"
	for value /= 1 << 10; value >= 1<<10 && len(units) > 1; value /= 1 << 10 {
		units = units[1:]
	}
	if value < 10 {
		return fmt.Sprintf("%.1f %ciB", value, units[0])
	}
	return fmt.Sprintf("%.0f %ciB", value, units[0])
}

// human formats the value of a field for a person. Sizes and times are recognized by their names.
func human(name string, v any) string {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil && (name == "size" || name == "bytes" || strings.HasSuffix(name, "_bytes")) {
			return Size(n)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil {
			return Age(time.Until(at))
		}
	}
	return cell(v)
}

// dated adds the exact time to an age.
func dated(text string, v any) string {
	if at, ok := v.(string); ok && at != text {
		return at + " (" + text + ")"
	}
	return text
}
