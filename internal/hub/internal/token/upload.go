package token

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Upload is what a ticket for an upload permits.
type Upload struct {
	Owner string `json:"owner"`
	Hash  string `json:"hash"`
	Until int64  `json:"until"` // Unix seconds
}

// IssueUpload returns a ticket that permits one caller without credentials to upload files for an owner.
func (s *Signer) IssueUpload(u Upload) string {
	b, err := json.Marshal(u)
	if err != nil {
		panic(err) // strings and a number
	}
	text := base64.RawURLEncoding.EncodeToString(b)
	return text + "." + s.sign("upload", text, Bearer{})
}

// CheckUpload returns what a ticket permits, if it is valid.
func (s *Signer) CheckUpload(ticket string, now time.Time) (u Upload, ok bool) {
	text, mac, _ := strings.Cut(ticket, ".")
	if !equal(s.sign("upload", text, Bearer{}), mac) {
		return u, false
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(b, &u) != nil {
		return Upload{}, false
	}
	return u, now.Unix() < u.Until
}
