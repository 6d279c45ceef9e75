package builder

import (
	"encoding/base64"
	"strings"
)

// newMask returns what replaces the lines of secrets, also in base64.
func newMask(secrets map[string]string) *strings.Replacer {
	var pairs []string
	for _, value := range secrets {
		for _, text := range append(strings.Split(value, "\n"), value) {
			for _, form := range []string{text, strings.TrimSpace(text)} {
				if len(form) < minMasked {
					continue
				}
				pairs = append(pairs, form, "***")
				plain := base64.StdEncoding.EncodeToString([]byte(form))
				pairs = append(pairs, plain, "***", strings.TrimRight(plain, "="), "***")
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// minMasked is the minimum length of a masked text: shorter ones would make logs unreadable, and occur by chance.
const minMasked = 4
