package activity

import (
	"regexp"
	"strings"
	"sync"
)

const (
	removed = "[removed]"
	// minSecret is the minimum length of a value that is removed from all text.
	minSecret = 6
)

// hints are substrings of texts that may contain a secret. Texts without a hint are not searched
// further.
var hints = []string{"pass", "pwd", "secret", "token", "key", "auth", "bearer", "cookie", "credential", "://", "sk-",
	"ghp_", "gho_", "github_pat_", "xox", "akia", "eyj"}

// patterns find secrets in commands, output and files. The first group is kept.
var patterns = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?is)(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END|$)`),
		regexp.MustCompile(`(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@"'\\]*:)[^\s/@"'\\]+@`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[a-z0-9._~+/=-]{6,}`),
		regexp.MustCompile(`(?i)((?:set-cookie|cookie|authorization)\s*:\s*)[^\r\n"'\\]+`),
		regexp.MustCompile(`(?i)([a-z0-9_.-]*(?:password|passwd|pwd|secret|token|credential|` +
			`api[_-]?key|access[_-]?key|private[_-]?key)[a-z0-9_.-]*\\?["']?\s*[=:]\s*\\?["']?)[^\s"'\\,;&}]+`),
		regexp.MustCompile(`(?i)(--?(?:password|passwd|secret|token|api[_-]?key)[ =]\\?["']?)[^\s"'\\,;&}]+`),
		regexp.MustCompile(`()\b(?:sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|` +
			`xox[a-z]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{12,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*)`),
	}
})

// secretsOf returns the values of variables whose names indicate a secret. It excludes paths, such
// as those of PWD and SSH_AUTH_SOCK, since their removal would make the record unreadable.
func secretsOf(env []string) []string {
	var values []string
	for _, pair := range env {
		if name, value, _ := strings.Cut(pair, "="); isSecret(name, mapWords...) && !strings.HasPrefix(value, "/") {
			values = append(values, value)
		}
	}
	return values
}

// redact removes text that looks like a secret, and the given values.
func redact(text string, values []string) string {
	if text == "" {
		return text
	}
	for _, v := range values {
		text = strings.ReplaceAll(text, v, removed)
	}
	lower := strings.ToLower(text)
	for _, hint := range hints {
		if strings.Contains(lower, hint) {
			for _, p := range patterns() {
				text = p.ReplaceAllString(text, "${1}"+removed)
			}
			return text
		}
	}
	return text
}
